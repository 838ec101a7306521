"""Algorithm 2, the Langevin adjustment: x <- x + delta grad ln p_t(x) + sqrt(2 delta) xi, M' times."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Scalar

from pgps import _checks
from pgps.adjustments.base import AbstractAdjustment, Adjustment, Evaluate
from pgps.density import Evaluations, Population
from pgps.noise import draw_noise, fold_in
from pgps.steppers.base import crossings


def langevin_step(
    key: Array, particles: Float[Array, "n dim"], score: Float[Array, "n dim"], step_size: Scalar | float
) -> Float[Array, "n dim"]:
    """One unadjusted Langevin step: x + delta score + sqrt(2 delta) xi."""
    return particles + step_size * score + jnp.sqrt(2 * step_size) * draw_noise(key, particles)


class Langevin(AbstractAdjustment):
    """Unadjusted Langevin steps on p_t (Algorithm 2).

    They have p_t as their stationary law only in the limit of small steps, so particles carry no exact weights.

    Args:
        step_size: The step size delta.
        num_steps: Steps per adjustment, M'.
        every: Adjust only when t reaches or passes a multiple of this; None adjusts after every time step.
        final_steps: Further steps at t = 1.
    """

    step_size: float = 1e-2
    num_steps: int = 10
    every: float | None = None
    final_steps: int = 0

    def __check_init__(self):
        _checks.positive("step_size", self.step_size)
        _checks.whole("num_steps", self.num_steps, at_least=0)
        _checks.whole("final_steps", self.final_steps, at_least=0)
        if self.every is not None:
            _checks.within("every", self.every, 0, 1, open_low=True)

    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, memory: PyTree, evaluate: Evaluate
    ) -> tuple[Population, PyTree, Adjustment]:
        """Take the steps that are due at t."""

        def move(k: Int[Array, ""], population: Population) -> Population:
            key_k = fold_in(key, k)
            particles = langevin_step(key_k, population.particles, population.score, self.step_size)
            # A stochastic target is estimated by what is left of the key: noise takes it whole.
            return evaluate(particles, fold_in(key_k, 1))

        num_steps = self._steps_due(before, t)
        population = jax.lax.fori_loop(0, num_steps, move, population)
        return population, memory, Adjustment(num_steps, Evaluations(gradients=num_steps))

    def _steps_due(self, before: Scalar, t: Scalar) -> Int[Array, ""]:
        due = True if self.every is None else crossings(before, t, self.every) > 0
        return jnp.where(due, self.num_steps, 0) + jnp.where(t == 1, self.final_steps, 0)
