"""Hamiltonian Monte Carlo: leapfrog steps of size epsilon, with momenta v ~ N(0, I), as a proposal.

    v <- v + epsilon/2 grad ln p(x);   x <- x + epsilon v;   v <- v + epsilon/2 grad ln p(x)

It is accepted with log_ratio = ln p(x') - |v'|^2/2 - ln p(x) + |v|^2/2.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Scalar

from pgps import _checks
from pgps.adjustments.base import AbstractAdjustment, Adjustment, Evaluate
from pgps.adjustments.metropolis import Move, adapted_moves, check_moves, metropolis
from pgps.density import Population


def hmc_step(
    key: Array,
    population: Population,
    step_size: Scalar | float,
    num_leapfrog: Int[Array, ""] | int,
    evaluate: Evaluate,
) -> Move:
    """One move of every particle; it costs `num_leapfrog` gradient calls each."""
    key_momentum, key_accept = jax.random.split(key)
    momentum = jax.random.normal(key_momentum, population.particles.shape, population.particles.dtype)

    def leapfrog(_: Int[Array, ""], carry: tuple[Population, Array]) -> tuple[Population, Array]:
        population, momentum = carry
        half = momentum + 0.5 * step_size * population.score
        population = evaluate(population.particles + step_size * half)
        return population, half + 0.5 * step_size * population.score

    def energy(population: Population, momentum: Float[Array, "n dim"]) -> Float[Array, " n"]:
        return 0.5 * jnp.sum(momentum**2, axis=-1) - population.logdensity

    proposal, end = jax.lax.fori_loop(0, num_leapfrog, leapfrog, (population, momentum))
    return metropolis(key_accept, population, proposal, energy(population, momentum) - energy(proposal, end))


class HMC(AbstractAdjustment):
    """Hamiltonian moves on p_t; weights stay as they are.

    Args:
        step_size: The leapfrog step epsilon; the first one, if it is adapted.
        num_leapfrog: Leapfrog steps per move.
        num_steps: Moves per adjustment.
        target_acceptance: The acceptance rate that the step size is adapted to; None keeps the step size.
    """

    step_size: float = 0.2
    num_leapfrog: int = 5
    num_steps: int = 1
    target_acceptance: float | None = 0.8

    def __check_init__(self):
        check_moves(self.step_size, self.num_steps, self.target_acceptance)
        _checks.whole("num_leapfrog", self.num_leapfrog, at_least=1)

    def init(self, dtype: Any) -> Scalar:
        """The logarithm of the step size."""
        return jnp.log(jnp.asarray(self.step_size, dtype))

    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, memory: PyTree, evaluate: Evaluate
    ) -> tuple[Population, PyTree, Adjustment]:
        """Take the moves; the step size follows the acceptance rate from one to the next."""

        def kernel(key: Array, population: Population, step_size: Scalar) -> Move:
            return hmc_step(key, population, step_size, self.num_leapfrog, evaluate)

        return adapted_moves(key, population, memory, kernel, self.num_steps, self.target_acceptance, self.num_leapfrog)
