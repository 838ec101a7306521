"""Metropolis's rule, and moves by it whose step size is adapted to an acceptance rate.

A proposal x' takes the place of x with probability min(1, exp(log_ratio)), where log_ratio is
ln p(x') q(x | x') - ln p(x) q(x' | x). Where the density is nan a proposal is refused, and counted.

A proposal outside the support is refused, too, but shorter steps would not help: along an edge some always are, however
short. So along a known edge the rate that steps are adapted to is that inside, as long as enough proposals are inside.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from pgps import _checks
from pgps.adjustments.base import Adjustment
from pgps.adjustments.crossed import Crossed
from pgps.adjustments.widths import uniform_widths, unit_widths
from pgps.density import Evaluations, Population
from pgps.noise import draw_uniform, fold_in

# How fast ln step_size follows the acceptance rate, which falls by about a half per unit of it.
_GAIN = 1.0
# The number of moves changes by this factor at most, from one adjustment to the next.
_FASTEST = 2.0
# From narrow to wide places moves have to go farther than elsewhere: what they covered there counts by this share.
_PLACES = 0.5
# The least share of proposals inside the support; the best one for flat densities is 0.14 (Neal, Roberts, Yuen 2012).
_LEAST_INSIDE = 0.2
LEAST_OF_AIM = 0.9
"""Moves that have covered less than this share of what they are to cover are followed by others, or doubted."""


class Move(NamedTuple):
    """One move: the population after it, the mean acceptance probability, and the proposals that were nan."""

    population: Population
    acceptance: Scalar
    faults: Int[Array, ""]
    inside: Scalar
    """The share of the proposals inside the support."""


Kernel = Callable[[Array, Population, Scalar, Crossed], Move]
"""One move of every particle: (key, population, step_size, widths) -> Move, with steps in units of the widths."""


def metropolis(key: Array, population: Population, proposal: Population, log_ratio: Float[Array, " n"]) -> Move:
    """Accept or refuse each particle's proposal."""
    faulty = proposal.lost | proposal.faulty
    # A momentum that has overflowed has no ratio.
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    # From outside the support every way back in is taken; to outside it, none.
    log_ratio = jnp.where(faulty | ~proposal.alive, -jnp.inf, jnp.where(population.alive, log_ratio, jnp.inf))
    probability = jnp.exp(jnp.minimum(log_ratio, 0.0))
    accepted = draw_uniform(key, len(probability), probability.dtype) < probability
    inside = jnp.mean(faulty | proposal.alive, dtype=probability.dtype)
    return Move(proposal.where(accepted, population), jnp.mean(probability), jnp.sum(faulty), inside)


class MoveMemory(NamedTuple):
    """What moves carry from one adjustment to the next."""

    log_step_size: Scalar
    num_steps: Scalar
    """The number of moves that seemed enough, not yet rounded."""
    widths: Crossed | None = None
    """The widths as the moved particles show them, where moves go by local ones,"""
    has_edge: Bool[Array, ""] | None = None
    """and whether the density jumps to 0 somewhere."""


class Moves(NamedTuple):
    """Moves so far: their sum, the step size and number that they came to, and the distance that they covered."""

    total: Move
    log_step_size: Scalar
    num_steps: Int[Array, ""]
    covered: Scalar


class KeptMoves(NamedTuple):
    """Moves that can be made again: the step size, what it is measured in, and their number."""

    step_size: Scalar
    widths: Crossed
    num_steps: Int[Array, ""]


def replayed_moves(
    key: Array, population: Population, kept: KeptMoves, kernel: Kernel, calls_per_move: Int[Array, ""] | int = 1
) -> tuple[Population, Evaluations]:
    """Moves of a fixed step size and number."""

    def move(k: Int[Array, ""], population: Population) -> Population:
        return kernel(fold_in(key, k), population, kept.step_size, kept.widths).population

    population = jax.lax.fori_loop(0, kept.num_steps, move, population)
    return population, Evaluations(gradients=kept.num_steps * calls_per_move)


def first_memory(step_size: float, num_steps: int, population: Population) -> MoveMemory:
    """The memory before the first move."""
    dtype = population.particles.dtype
    return MoveMemory(jnp.log(jnp.asarray(step_size, dtype)), jnp.asarray(num_steps, dtype))


def check_moves(
    step_size: float, num_steps: int, target_acceptance: float | None, mixing: float | None = None, max_steps: int = 1
) -> None:
    """Raise unless these are settings of adapted moves."""
    _checks.positive("step_size", step_size)
    _checks.whole("num_steps", num_steps, at_least=1)
    if target_acceptance is not None:
        _checks.between("target_acceptance", target_acceptance, 0, 1)
    if mixing is not None:
        _checks.between("mixing", mixing, 0, 1)
    _checks.whole("max_steps", max_steps, at_least=1)


def _excess(move: Move, target_acceptance: float, has_edge: Bool[Array, ""] | None) -> Scalar:
    """How far the acceptance rate is above its aim; along an edge that inside, or the share inside above its least."""
    excess = move.acceptance - target_acceptance
    if has_edge is None:
        return excess
    inside = move.acceptance / jnp.maximum(move.inside, jnp.finfo(move.inside.dtype).tiny)
    return jnp.where(has_edge, jnp.minimum(inside - target_acceptance, move.inside - _LEAST_INSIDE), excess)


def _covered(before: Population, after: Population, widths: Crossed) -> Scalar:
    """The lesser of two distances: that in units of the widths, and that between narrow and wide places."""
    return jnp.minimum(widths.distance_covered(before, after), _PLACES * widths.places_covered(before, after))


def adapted_moves(
    key: Array,
    population: Population,
    memory: MoveMemory,
    kernel: Kernel,
    widths: Crossed | None,
    target_acceptance: float | None,
    mixing: float | None,
    max_steps: int,
    calls_per_move: Int[Array, ""] | int = 1,
) -> tuple[Population, MoveMemory, Adjustment]:
    """Several moves; step size and number follow the acceptance rate and the distance covered, if those have aims.

    Args:
        key: A random key.
        population: The particles.
        memory: The first step size, and the number of moves.
        kernel: One move.
        widths: What steps are measured in; None has them as they are.
        target_acceptance: The acceptance rate that is sought; None keeps the step size.
        mixing: The distance that is sought, as a share of what independent particles would have; None keeps the number.
        max_steps: The largest number of moves, where it is adapted.
        calls_per_move: Gradient calls that one move costs.
    """
    units = Crossed.same(unit_widths(population)) if widths is None else widths
    measure = Crossed.same(uniform_widths(population)) if widths is None else widths
    planned = jnp.round(memory.num_steps).astype(int)

    def unfinished(moves: Moves) -> Bool[Array, ""]:
        if mixing is None:
            return moves.num_steps < planned
        short = moves.covered < LEAST_OF_AIM * mixing
        return (moves.num_steps < planned) | (short & (moves.num_steps < max_steps))

    def move(moves: Moves) -> Moves:
        last, log_step_size = moves.total, moves.log_step_size
        new = kernel(fold_in(key, moves.num_steps), last.population, jnp.exp(log_step_size), units)
        if target_acceptance is not None:
            log_step_size += _GAIN * _excess(new, target_acceptance, memory.has_edge)
        sums = (getattr(last, name) + getattr(new, name) for name in ("acceptance", "faults", "inside"))
        total = Move(new.population, *sums)
        num_steps = moves.num_steps + 1
        covered = jax.lax.cond(
            num_steps >= planned, lambda after: _covered(population, after, measure), lambda _: zero, new.population
        )
        return Moves(total, log_step_size, num_steps, covered)

    zero = jnp.zeros((), population.particles.dtype)
    start = Moves(Move(population, zero, jnp.asarray(0), zero), memory.log_step_size, jnp.asarray(0), zero)
    moves = jax.lax.while_loop(unfinished, move, start)
    enough = memory.num_steps
    if mixing is not None:
        factor = jnp.clip(mixing / jnp.maximum(moves.covered, 1e-3), 1 / _FASTEST, _FASTEST)
        enough = jnp.clip(moves.num_steps * factor, 1.0, max_steps)
    report = _report(moves, units, measure, calls_per_move)
    return moves.total.population, MoveMemory(moves.log_step_size, enough), report


def _report(moves: Moves, units: Crossed, measure: Crossed, calls_per_move: Int[Array, ""] | int) -> Adjustment:
    population, num_steps = moves.total.population, moves.num_steps
    return Adjustment(
        num_steps,
        Evaluations(gradients=num_steps * calls_per_move),
        moves.total.acceptance / num_steps,
        moves.total.faults,
        moves.covered,
        measure.spread(population),
        measure.ratio(population),
        moves.total.inside / num_steps,
        KeptMoves(jnp.exp(moves.log_step_size), units.first, num_steps),
    )
