"""The Metropolis-adjusted Langevin algorithm: a Langevin step as a proposal.

    x' = x + delta grad ln p(x) + sqrt(2 delta) xi,      q(x' | x) ~ exp(-|x' - x - delta grad ln p(x)|^2 / (4 delta)).

It is accepted by Metropolis's rule, so that p is the stationary law at any step size.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Scalar

from pgps.adjustments.base import AbstractAdjustment, Adjustment, Evaluate
from pgps.adjustments.crossed import Crossed
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
from pgps.adjustments.widths import uniform_widths
from pgps.density import Evaluations, Population
from pgps.noise import draw_noise, split


def mala_step(key: Array, population: Population, step_size: Array | float, evaluate: Evaluate) -> Move:
    """One move of every particle, which costs one gradient call each; coordinates may have step sizes of their own."""
    key_noise, key_accept = split(key)
    noise = draw_noise(key_noise, population.particles)
    drift = step_size * population.score
    proposal = evaluate(population.particles + drift + jnp.sqrt(2 * step_size) * noise)

    # x' - x - delta grad ln p(x) is sqrt(2 delta) xi; the way back has a shift of its own.
    back = population.particles - proposal.particles - step_size * proposal.score
    log_q_ratio = jnp.sum(0.5 * noise**2 - back**2 / (4 * step_size), axis=-1)
    log_ratio = proposal.logdensity - population.logdensity + log_q_ratio
    return metropolis(key_accept, population, proposal, log_ratio)


class MALA(AbstractAdjustment):
    """Metropolis-adjusted Langevin moves on p_t; weights stay as they are.

    Args:
        step_size: The step size delta; the first one, if it is adapted.
        num_steps: Moves per adjustment; at first, if the number is adapted.
        target_acceptance: The acceptance rate that the step size is adapted to; None keeps the step size.
        precondition: Whether steps are scaled, in each coordinate, by the local width of the density.
        mixing: The mean squared distance that moves should cover, as a share of that between independent particles:
            the number of moves is adapted to it. None keeps the number.
        max_steps: The largest number of moves, where it is adapted.
    """

    step_size: float = 0.1
    num_steps: int = 5
    target_acceptance: float | None = 0.574
    precondition: bool = eqx.field(static=True, default=False)
    mixing: float | None = None
    max_steps: int = 20

    def __check_init__(self):
        check_moves(self.step_size, self.num_steps, self.target_acceptance, self.mixing, self.max_steps)

    def init(self, population: Population, has_edge: Bool[Array, ""] | bool = False) -> MoveMemory:
        """The logarithm of the step size, and the number of moves."""
        del has_edge
        return first_memory(self.step_size, self.num_steps, population)

    def leaves_invariant(self) -> bool:
        """By Metropolis's rule it is."""
        return True

    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, memory: PyTree, evaluate: Evaluate
    ) -> tuple[Population, PyTree, Adjustment]:
        """Take the moves; the step size follows the acceptance rate from one to the next."""
        widths = Crossed.fitted(uniform_widths, population) if self.precondition else None
        return adapted_moves(
            key,
            population,
            memory,
            self._kernel(evaluate),
            widths,
            self.target_acceptance,
            self.mixing,
            self.max_steps,
        )

    def replay(
        self, key: Array, kept: KeptMoves, population: Population, evaluate: Evaluate
    ) -> tuple[Population, Evaluations]:
        """Make the moves of an earlier adjustment again, with the step sizes that it ended with."""
        return replayed_moves(key, population, kept, self._kernel(evaluate))

    def _kernel(self, evaluate: Evaluate) -> Kernel:
        def kernel(key: Array, population: Population, step_size: Scalar, widths: Crossed) -> Move:
            return mala_step(key, population, step_size * widths.base(population.particles) ** 2, evaluate)

        return kernel
