"""Metropolis's rule, and moves by it whose step size is adapted to an acceptance rate.

A proposal x' takes the place of x with probability min(1, exp(log_ratio)), where log_ratio is
ln p(x') q(x | x') - ln p(x) q(x' | x). Where the density is nan a proposal is refused, and counted.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps import _checks
from pgps.adjustments.base import Adjustment
from pgps.density import Evaluations, Population

# How fast ln step_size follows the acceptance rate, which falls by about a half per unit of it.
_GAIN = 1.0


class Move(NamedTuple):
    """One move: the population after it, the mean acceptance probability, and the proposals that were nan."""

    population: Population
    acceptance: Scalar
    faults: Int[Array, ""]


Kernel = Callable[[Array, Population, Scalar], Move]
"""One move of every particle: (key, population, step_size) -> Move."""


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


def check_moves(step_size: float, num_steps: int, target_acceptance: float | None) -> None:
    """Raise unless these are settings of adapted moves."""
    _checks.positive("step_size", step_size)
    _checks.whole("num_steps", num_steps, at_least=1)
    if target_acceptance is not None:
        _checks.between("target_acceptance", target_acceptance, 0, 1)


def adapted_moves(
    key: Array,
    population: Population,
    log_step_size: Scalar,
    kernel: Kernel,
    num_steps: int,
    target_acceptance: float | None,
    calls_per_move: int = 1,
) -> tuple[Population, Scalar, Adjustment]:
    """Several moves, whose step size follows the acceptance rate, unless there is no target for it.

    Args:
        key: A random key.
        population: The particles.
        log_step_size: The logarithm of the first step size.
        kernel: One move.
        num_steps: How many moves.
        target_acceptance: The acceptance rate that is sought; None keeps the step size.
        calls_per_move: Gradient calls that one move costs.
    """

    def move(k: Int[Array, ""], carry: tuple[Move, Scalar]) -> tuple[Move, Scalar]:
        last, log_step_size = carry
        new = kernel(jax.random.fold_in(key, k), last.population, jnp.exp(log_step_size))
        if target_acceptance is not None:
            log_step_size += _GAIN * (new.acceptance - target_acceptance)
        return Move(new.population, last.acceptance + new.acceptance, last.faults + new.faults), log_step_size

    start = Move(population, jnp.zeros((), population.particles.dtype), jnp.asarray(0))
    moves, log_step_size = jax.lax.fori_loop(0, num_steps, move, (start, log_step_size))
    evaluations = Evaluations(gradients=num_steps * calls_per_move)
    report = Adjustment(jnp.asarray(num_steps), evaluations, moves.acceptance / num_steps, moves.faults)
    return moves.population, log_step_size, report
