"""Hamiltonian Monte Carlo: leapfrog steps of size epsilon, with momenta v ~ N(0, I), as a proposal.

    v <- v + epsilon/2 grad ln p(x);   x <- x + epsilon v;   v <- v + epsilon/2 grad ln p(x)

It is accepted with log_ratio = ln p(x') - |v'|^2/2 - ln p(x) + |v|^2/2.
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps import _checks
from pgps.adjustments.base import AbstractAdjustment, Adjustment, Evaluate
from pgps.adjustments.crossed import Crossed
from pgps.adjustments.funnels import fit_funnels, funnel_step, no_funnels
from pgps.adjustments.metropolis import (
    KeptMoves,
    Kernel,
    Move,
    MoveMemory,
    adapted_moves,
    check_moves,
    first_memory,
    metropolis,
    replayed_moves,
)
from pgps.adjustments.widths import RANK, Widths, uniform_widths, unit_widths, width_functions
from pgps.density import Evaluations, Population
from pgps.noise import draw_noise, draw_uniform, split


def hmc_step(
    key: Array,
    population: Population,
    step_size: Array | float,
    num_leapfrog: Int[Array, ""] | int,
    evaluate: Evaluate,
    log_ratio: Callable[[Float[Array, "n dim"]], Float[Array, " n"]] | None = None,
    widths: Crossed | None = None,
) -> Move:
    """One move of every particle, which costs `num_leapfrog` gradient calls each.

    Particles and coordinates may have step sizes of their own. If these were drawn, `log_ratio` tells of a proposal by
    how much the logarithm of their density is larger there. Momenta are those along the axes of `widths`, if it is
    given, and else along the coordinates.
    """
    key_momentum, key_accept = split(key)
    momentum = draw_noise(key_momentum, population.particles)
    along, combine = (lambda v: v, lambda v: v) if widths is None else (widths.along, widths.combine)

    def leapfrog(_: Int[Array, ""], carry: tuple[Population, Array]) -> tuple[Population, Array]:
        population, momentum = carry
        half = momentum + 0.5 * along(step_size * population.score)
        population = evaluate(population.particles + step_size * combine(half))
        return population, half + 0.5 * along(step_size * population.score)

    def energy(population: Population, momentum: Float[Array, "n dim"]) -> Float[Array, " n"]:
        return 0.5 * jnp.sum(momentum**2, axis=-1) - population.logdensity

    proposal, end = jax.lax.fori_loop(0, num_leapfrog, leapfrog, (population, momentum))
    gain = energy(population, momentum) - energy(proposal, end)
    return metropolis(
        key_accept, population, proposal, gain if log_ratio is None else gain + log_ratio(proposal.particles)
    )


class HMC(AbstractAdjustment):
    """Hamiltonian moves on p_t; weights stay as they are.

    Args:
        step_size: The leapfrog step epsilon; the first one, if it is adapted.
        num_leapfrog: Leapfrog steps per move; None is 1.2 D^(1/4), with which a move of adapted step size goes about
            a quarter of an orbit in a Gaussian of any dimension D.
        num_steps: Moves per adjustment; at first, if the number is adapted.
        target_acceptance: The acceptance rate that the step size is adapted to; None keeps the step size.
        precondition: Whether steps are scaled, in each coordinate, by the local width of the density.
        jitter: Each particle's steps are shorter by a random share, up to this one, since steps of one size bring
            particles back to where they came from, for some sizes.
        mixing: The mean squared distance that moves should cover, as a share of that between independent particles:
            the number of moves is adapted to it. None keeps the number.
        max_steps: The largest number of moves, where it is adapted.
        local: Whether the local width may vary from place to place, as in a funnel, and be that along other directions
            than the coordinates', as in a correlated density, where the scores tell so.
    """

    step_size: float = 0.2
    num_leapfrog: int | None = 5
    num_steps: int = 1
    target_acceptance: float | None = 0.8
    precondition: bool = eqx.field(static=True, default=False)
    jitter: float = 0.0
    mixing: float | None = None
    max_steps: int = 20
    local: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_moves(self.step_size, self.num_steps, self.target_acceptance, self.mixing, self.max_steps)
        _checks.within("jitter", self.jitter, 0, 1)
        if self.num_leapfrog is not None:
            _checks.whole("num_leapfrog", self.num_leapfrog, at_least=1)

    def init(self, population: Population, has_edge: Bool[Array, ""] | bool = False) -> MoveMemory:
        """The logarithm of the step size, the number of moves, and the widths if they are local."""
        memory = first_memory(self.step_size, self.num_steps, population)
        if not (self.precondition and self.local):
            return memory
        # At the start they vary nowhere: a law to start from is hardly a funnel.
        return memory._replace(widths=Crossed.fitted(_unfitted, population), has_edge=jnp.asarray(has_edge))

    def leaves_invariant(self) -> bool:
        """By Metropolis's rule it is."""
        return True

    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, memory: PyTree, evaluate: Evaluate
    ) -> tuple[Population, PyTree, Adjustment]:
        """Take the moves; the step size follows the acceptance rate from one to the next."""
        widths, has_edge = None, memory.has_edge
        if memory.widths is not None:
            # As the particles showed them when they had moved: a step leaves some in places where they hardly belong.
            widths = memory.widths.refreshed(population, has_edge)
        elif self.precondition:
            widths = Crossed.fitted(uniform_widths, population)
        num_leapfrog = self._num_leapfrog(population)
        moved, memory, report = adapted_moves(
            key,
            population,
            memory,
            self._kernel(num_leapfrog, evaluate),
            widths,
            self.target_acceptance,
            self.mixing,
            self.max_steps,
            _calls(num_leapfrog, widths),
        )
        if widths is not None and self.local:
            # Near an edge scores do not tell widths: they know nothing of it.
            fit = partial(jax.lax.cond, has_edge, _unfitted, _fitted)
            memory = memory._replace(widths=Crossed.fitted(fit, moved), has_edge=has_edge)
        return moved, memory, report

    def replay(
        self, key: Array, kept: KeptMoves, population: Population, evaluate: Evaluate
    ) -> tuple[Population, Evaluations]:
        """Make the moves of an earlier adjustment again, with the step sizes that it ended with."""
        num_leapfrog = self._num_leapfrog(population)
        calls = _calls(num_leapfrog, kept.widths)
        return replayed_moves(key, population, kept, self._kernel(num_leapfrog, evaluate), calls)

    def _num_leapfrog(self, population: Population) -> int:
        dim = population.particles.shape[1]
        return max(1, round(1.2 * dim**0.25)) if self.num_leapfrog is None else self.num_leapfrog

    def _kernel(self, num_leapfrog: int, evaluate: Evaluate) -> Kernel:
        def kernel(key: Array, population: Population, step_size: Scalar, widths: Crossed) -> Move:
            key_move, key_jitter, key_place, key_funnel = split(key, 4)
            start = population.particles
            shares = draw_uniform(key_jitter, len(start), start.dtype)
            lengths = step_size * (1 - self.jitter * shares[:, None])
            if not self.local:
                return hmc_step(key_move, population, lengths * widths.base(start), num_leapfrog, evaluate)
            drawn = widths.drawn(draw_noise(key_place, jnp.zeros((len(start), RANK), start.dtype)), start)
            log_ratio = partial(widths.log_ratio, drawn, start)
            move = hmc_step(key_move, population, lengths * widths.at(drawn), num_leapfrog, evaluate, log_ratio, widths)
            if widths.parts.funnels is None:
                return move
            through = jax.lax.cond(
                widths.has_funnels,
                lambda population: funnel_step(key_funnel, population, widths, evaluate),
                lambda population: move._replace(population=population, faults=jnp.zeros_like(move.faults)),
                move.population,
            )
            return move._replace(population=through.population, faults=move.faults + through.faults)

        return kernel


def _fitted(population: Population) -> Widths:
    """How widths vary from place to place, and the ways through the funnels that they tell of."""
    widths = width_functions(population)
    return widths._replace(funnels=fit_funnels(population, widths))


def _unfitted(population: Population) -> Widths:
    """The same before any moves."""
    widths = unit_widths(population)
    return widths._replace(funnels=no_funnels(population, widths))


def _calls(num_leapfrog: int, widths: Crossed | None) -> Int[Array, ""] | int:
    """Gradient calls of one move: one more where there are funnels to go through."""
    return num_leapfrog if widths is None else num_leapfrog + jnp.asarray(widths.has_funnels).astype(int)
