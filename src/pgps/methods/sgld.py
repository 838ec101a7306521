"""Stochastic gradient Langevin dynamics (Welling and Teh 2011): x <- x + delta_k g(x) + sqrt(2 delta_k) xi.

g is the gradient of the log-density, estimated anew at every step where the density offers estimates (minibatches).
Particles are the last states of one chain, or of several, so that a single long chain gives many of them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from pgps import _checks
from pgps.adjustments.langevin import langevin_step
from pgps.density import Population, Problem, evaluate_target
from pgps.methods.base import AbstractMethod, Row, State, Trace, begin_on_target, estimation_key, proceed


class SGLD(AbstractMethod):
    """Stochastic gradient Langevin dynamics, started from the initial law.

    Args:
        step_size: The first step size delta_0.
        num_steps: The number of steps of each chain, those included whose states become particles.
        num_chains: How many chains. Each gives an equal number of particles, its last states. None has one chain per
            particle, of which the last state counts.
        decay: Step k has size delta_0 (1 + k)^-decay; 0 keeps it constant.
    """

    step_size: float = 1e-2
    num_steps: int = 1000
    num_chains: int | None = eqx.field(static=True, default=None)
    decay: float = 0.0

    def __check_init__(self):
        _checks.positive("step_size", self.step_size)
        _checks.whole("num_steps", self.num_steps, at_least=1)
        _checks.within("decay", self.decay, 0, 1)
        if self.num_chains is not None:
            _checks.whole("num_chains", self.num_chains, at_least=1)

    @property
    def step_limit(self) -> int:
        """The number of steps."""
        return self.num_steps

    def num_evaluated(self, num_particles: int) -> int:
        """One evaluation per chain."""
        return num_particles if self.num_chains is None else self.num_chains

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Chains that start from the initial law; until they have moved, particles are copies of their starts."""
        chains = self.num_evaluated(num_particles)
        if num_particles % chains:
            raise ValueError(
                f"num_particles must be a multiple of num_chains ({chains}), got {num_particles}; match them"
            )
        state = begin_on_target(key, problem, chains, stochastic=True)
        copies = jnp.tile(jnp.arange(chains), num_particles // chains)
        return eqx.tree_at(
            lambda state: (state.population, state.memory),
            state,
            (state.population.take(copies), state.population),
            is_leaf=lambda leaf: leaf is None,
        )

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One step of every chain, whose new states replace its oldest ones among the particles."""
        chains: Population = state.memory
        step_size = self.step_size * (1.0 + state.num_steps) ** -jnp.asarray(self.decay)
        moved = langevin_step(key, chains.particles, chains.score, step_size)
        chains = evaluate_target(moved, problem, estimation_key(key))
        num_chains = len(chains.logdensity)
        kept = len(state.population.logdensity) // num_chains
        start = state.num_steps % kept * num_chains
        population = jax.tree.map(
            lambda all_, new: jax.lax.dynamic_update_slice_in_dim(all_, new, start, 0), state.population, chains
        )
        state = proceed(state, population, self.num_steps, chains)
        unmoved = jnp.maximum(0, 1 - state.num_steps / kept)
        return state, {"t": state.clock.t, "step_size": step_size, "unmoved": unmoved}

    def doubts(self, trace: Trace) -> list[str]:
        """Particles that are still a chain's start; nothing tells whether the chains have mixed."""
        if not len(trace["unmoved"]) or trace["unmoved"][-1] == 0:
            return []
        share = trace["unmoved"][-1]
        return [f"{share:.0%} of the particles are copies of where chains started; take more steps, or more chains"]
