"""Metropolis's rule, and moves by it whose step size is adapted to an acceptance rate.

A proposal x' takes the place of x with probability min(1, exp(log_ratio)), where log_ratio is
ln p(x') q(x | x') - ln p(x) q(x' | x). Where the density is nan a proposal is refused, and counted.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar
from scipy import special

from pgps import _checks
from pgps.adjustments.base import Adjustment
from pgps.density import Evaluations, Population

# How fast ln step_size follows the acceptance rate, which falls by about a half per unit of it.
_GAIN = 1.0
# The number of moves changes by this factor at most, from one adjustment to the next.
_FASTEST = 2.0


def local_scales(population: Population) -> Float[Array, " dim"]:
    """How far the density reaches around a particle, in each coordinate.

    From the scores: for a Gaussian mean |score| = sqrt(2 / pi) / sigma. The particles' own spread would also count how
    far modes are apart; it is only used as a limit, where the density is flat.
    """
    tiny = jnp.finfo(population.particles.dtype).tiny
    scales = math.sqrt(2 / math.pi) / jnp.maximum(jnp.mean(jnp.abs(population.score), axis=0), tiny)
    spread = jnp.std(population.particles, axis=0)
    return jnp.minimum(scales, jnp.where(spread > 0, spread, scales))


class Move(NamedTuple):
    """One move: the population after it, the mean acceptance probability, and the proposals that were nan."""

    population: Population
    acceptance: Scalar
    faults: Int[Array, ""]


Kernel = Callable[[Array, Population, Array], Move]
"""One move of every particle: (key, population, step_size) -> Move, with step sizes for all coordinates or for each."""


def metropolis(key: Array, population: Population, proposal: Population, log_ratio: Float[Array, " n"]) -> Move:
    """Accept or refuse each particle's proposal."""
    faulty = proposal.lost | proposal.faulty
    # From outside the support every way back in is taken; to outside it, none.
    log_ratio = jnp.where(faulty | ~proposal.alive, -jnp.inf, jnp.where(population.alive, log_ratio, jnp.inf))
    probability = jnp.exp(jnp.minimum(log_ratio, 0.0))
    # Drawn once: see draw_noise.
    threshold = jax.lax.optimization_barrier(jax.random.uniform(key, probability.shape, probability.dtype))
    accepted = threshold < probability
    return Move(proposal.where(accepted, population), jnp.mean(probability), jnp.sum(faulty))


class MoveMemory(NamedTuple):
    """What moves carry from one adjustment to the next."""

    log_step_size: Scalar
    num_steps: Scalar
    """The number of moves that seemed enough, not yet rounded."""


class KeptMoves(NamedTuple):
    """Moves that can be made again: the step size in each coordinate, and their number."""

    step_sizes: Float[Array, " dim"]
    num_steps: Int[Array, ""]


def replayed_moves(
    key: Array, population: Population, kept: KeptMoves, kernel: Kernel, calls_per_move: int = 1
) -> tuple[Population, Evaluations]:
    """Moves of fixed step sizes and number."""

    def move(k: Int[Array, ""], population: Population) -> Population:
        return kernel(jax.random.fold_in(key, k), population, kept.step_sizes).population

    population = jax.lax.fori_loop(0, kept.num_steps, move, population)
    return population, Evaluations(gradients=kept.num_steps * calls_per_move)


def first_memory(step_size: float, num_steps: int, dtype: Any) -> MoveMemory:
    """The memory before the first move."""
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


def adapted_moves(
    key: Array,
    population: Population,
    memory: MoveMemory,
    kernel: Kernel,
    widths: Float[Array, " dim"] | float,
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
        kernel: One move, which takes step sizes.
        widths: What the step size is multiplied with, in each coordinate.
        target_acceptance: The acceptance rate that is sought; None keeps the step size.
        mixing: The distance that is sought, as a share of what independent particles would have; None keeps the number.
        max_steps: The largest number of moves, where it is adapted.
        calls_per_move: Gradient calls that one move costs.
    """

    def move(k: Int[Array, ""], carry: tuple[Move, Scalar]) -> tuple[Move, Scalar]:
        last, log_step_size = carry
        new = kernel(jax.random.fold_in(key, k), last.population, jnp.exp(log_step_size) * widths)
        if target_acceptance is not None:
            log_step_size += _GAIN * (new.acceptance - target_acceptance)
        return Move(new.population, last.acceptance + new.acceptance, last.faults + new.faults), log_step_size

    num_steps = jnp.round(memory.num_steps).astype(int)
    start = Move(population, jnp.zeros((), population.particles.dtype), jnp.asarray(0))
    moves, log_step_size = jax.lax.fori_loop(0, num_steps, move, (start, memory.log_step_size))
    covered = distance_covered(population, moves.population)
    enough = memory.num_steps
    if mixing is not None:
        factor = jnp.clip(mixing / jnp.maximum(covered, 1e-3), 1 / _FASTEST, _FASTEST)
        enough = jnp.clip(enough * factor, 1.0, max_steps)
    evaluations = Evaluations(gradients=num_steps * calls_per_move)
    report = Adjustment(
        num_steps,
        evaluations,
        moves.acceptance / num_steps,
        moves.faults,
        covered,
        width_spread(moves.population),
        KeptMoves(jnp.exp(log_step_size) * widths * jnp.ones(population.particles.shape[1]), num_steps),
    )
    return moves.population, MoveMemory(log_step_size, enough), report


def distance_covered(before: Population, after: Population) -> Scalar:
    """The mean squared distance of the moves, as a share of that between independent particles of the local width."""
    steps = (after.particles - before.particles) / local_scales(before)
    # Independent draws of variance 1 are 2 apart, squared.
    return 0.5 * jnp.mean(steps**2)


def width_spread(population: Population) -> Scalar:
    """By what factor the density's local width varies between particles: 1 for a Gaussian, or equal ones.

    In units of `local_scales` the squared score of a particle in a Gaussian is chi-squared with D degrees of freedom,
    over the squared width there. Compared are the 5% and 95% quantiles.
    """
    dim = population.particles.shape[1]
    sizes = jnp.sum((local_scales(population) * population.score) ** 2, axis=1)
    low, high = jnp.quantile(sizes, jnp.array([0.05, 0.95]))
    usual = 2 * special.gammaincinv(dim / 2, np.array([0.05, 0.95]))
    ratio = high / jnp.maximum(low, jnp.finfo(sizes.dtype).tiny) * (usual[0] / usual[1])
    return jnp.sqrt(jnp.maximum(ratio, 1.0))
