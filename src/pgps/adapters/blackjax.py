"""BlackJAX both ways (extra `blackjax`): methods as its sampling algorithms, and its kernels as adjustments."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps import _checks
from pgps.adapters import _extra
from pgps.adjustments.base import AbstractAdjustment, Adjustment, Evaluate
from pgps.adjustments.widths import distance_covered, uniform_widths, width_spread
from pgps.density import Evaluations, Population, Problem
from pgps.initial import AbstractLaw, as_law
from pgps.methods.base import TRANSPORT, AbstractMethod, State


class ParticlesState(NamedTuple):
    """Particles between two steps, in the user's pytree with a leading axis.

    Attributes:
        particles: The particles.
        log_weights: Their log-weights; all 0 for a method that has none.
        t: The time, which is 1 at the end.
        state: All that the method itself carries along.
    """

    particles: PyTree[Float[Array, "n ..."]]
    log_weights: Float[Array, " n"]
    t: Scalar
    state: State


class StepInfo(NamedTuple):
    """What a step tells: whether t was 1 already, so that nothing was done, and its row of the trace."""

    is_done: Bool[Array, ""]
    trace: dict[str, Array]


class _Given(eqx.Module):
    """A problem whose particles at t = 0 are given."""

    problem: Problem
    particles: Float[Array, "n dim"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def draw(self, key: Array, num_particles: int) -> Float[Array, "n dim"]:
        """The given ones."""
        return self.particles


def as_sampling_algorithm(
    method: AbstractMethod,
    logdensity_fn: Callable[[PyTree], Scalar],
    initial: AbstractLaw | tuple[Callable, Callable],
) -> Any:
    """A method as a `blackjax.SamplingAlgorithm`, whose `init` takes draws of the initial law, as its SMC does.

    `init(particles, rng_key)` and `step(rng_key, state)` are pure functions, to be compiled by their user. A step at
    t = 1 changes nothing, so that a loop may take more steps than are needed.

    Args:
        method: The sampler: `pgps.exact()`, or one of `pgps.methods`.
        logdensity_fn: Takes one particle and returns its log-density.
        initial: Where particles start.
    """
    blackjax = _extra.load("blackjax", "blackjax")
    _checks.instance("method", method, AbstractMethod, "pgps.exact() or pgps.methods")
    _checks.function("logdensity_fn", logdensity_fn, "(particle) -> scalar")
    problem = Problem.of(logdensity_fn, as_law(initial))

    def seen(state: State) -> ParticlesState:
        particles = state.population.particles
        weights = state.weights
        log_weights = jnp.zeros(len(particles), particles.dtype) if weights is None else weights.log_weights
        return ParticlesState(jax.vmap(problem.structure.unravel)(particles), log_weights, state.clock.t, state)

    def init(position: PyTree, rng_key: Array) -> ParticlesState:
        particles = jax.vmap(problem.structure.ravel)(position)
        given: Any = _Given(problem, particles)
        return seen(_as_arrays(method.init(rng_key, given, len(particles))))

    def step(rng_key: Array, state: ParticlesState) -> tuple[ParticlesState, StepInfo]:
        def advance() -> tuple[State, dict[str, Array]]:
            after, row = method.step(rng_key, state.state, problem)
            return after, _as_arrays({name: value for name, value in row.items() if name != TRANSPORT})

        def stay() -> tuple[State, dict[str, Array]]:
            row = eqx.filter_eval_shape(advance)[1]
            return state.state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), row)

        is_done = state.t >= 1
        after, row = jax.lax.cond(is_done, stay, advance)
        return seen(after), StepInfo(is_done, row)

    return blackjax.SamplingAlgorithm(init, step)


def _as_arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, tree)


@eqx.filter_custom_vjp
def _logdensity(x: Float[Array, " dim"], evaluate: Evaluate) -> Scalar:
    """ln p_t of one particle, with the score that comes with an evaluation as its gradient."""
    return evaluate(x[None]).logdensity[0]


@_logdensity.def_fwd
def _forward(perturbed: Any, x: Array, evaluate: Evaluate) -> tuple[Scalar, Array]:
    del perturbed
    population = evaluate(x[None])
    return population.logdensity[0], population.score[0]


@_logdensity.def_bwd
def _backward(score: Array, cotangent: Scalar, *_: Any) -> Array:
    return cotangent * score


class Kernel(AbstractAdjustment):
    """Moves of a BlackJAX kernel on p_t; weights stay as they are, so that its law must be p_t exactly.

    Args:
        algorithm: Takes a log-density of one flat vector and returns an algorithm with `init` and `step`, as in
            `lambda logdensity_fn: blackjax.nuts(logdensity_fn, 0.1, jnp.ones(2))`. Metropolis-adjusted ones leave the
            density as it is; unadjusted ones, such as `blackjax.mclmc`, do not.
        num_steps: Moves per adjustment.
    """

    algorithm: Callable[[Callable[[Array], Scalar]], Any]
    num_steps: int = 1

    def __check_init__(self):
        _checks.function("algorithm", self.algorithm, "(logdensity_fn) -> blackjax.SamplingAlgorithm")
        _checks.whole("num_steps", self.num_steps, at_least=1)

    def leaves_invariant(self) -> bool:
        """As its user says, by giving a kernel that does."""
        return True

    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, memory: PyTree, evaluate: Evaluate
    ) -> tuple[Population, PyTree, Adjustment]:
        """Take the moves."""
        moved, acceptance, evaluations = self._moves(key, population, evaluate)
        widths = uniform_widths(population)
        report = Adjustment(
            jnp.asarray(self.num_steps),
            evaluations,
            acceptance,
            covered=distance_covered(population, moved, widths),
            width_spread=width_spread(moved, widths),
        )
        return moved, memory, report

    def replay(
        self, key: Array, kept: PyTree, population: Population, evaluate: Evaluate
    ) -> tuple[Population, Evaluations]:
        """The same moves: nothing is adapted."""
        moved, _, evaluations = self._moves(key, population, evaluate)
        return moved, evaluations

    def _moves(self, key: Array, population: Population, evaluate: Evaluate) -> tuple[Population, Scalar, Evaluations]:
        algorithm = self.algorithm(lambda x: _logdensity(x, evaluate))
        num, dtype = population.logdensity.shape[0], population.particles.dtype

        def move(k: Int[Array, ""], carry: tuple) -> tuple:
            states, acceptance, calls = carry
            keys = jax.random.split(jax.random.fold_in(key, k), num)
            states, info = jax.vmap(algorithm.step)(keys, states)
            accepted = jnp.asarray(getattr(info, "acceptance_rate", 1.0))
            # Leapfrog steps may differ between particles, where there is one count for all: their mean, rounded up.
            steps = jnp.broadcast_to(jnp.asarray(getattr(info, "num_integration_steps", 1), int), (num,))
            return states, acceptance + jnp.mean(accepted).astype(dtype), calls + -(-jnp.sum(steps) // num)

        start = (jax.vmap(algorithm.init)(population.particles), jnp.zeros((), dtype), jnp.asarray(0))
        states, acceptance, calls = jax.lax.fori_loop(0, self.num_steps, move, start)
        # Once more at either end: a kernel knows neither the time derivative nor what the path has evaluated.
        return evaluate(states.position), acceptance / self.num_steps, Evaluations(gradients=calls + 2)
