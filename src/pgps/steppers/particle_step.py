"""Algorithm 1, the adaptive time step: dt = min(psi / mean_i |phi(x_i)|, dt', 1 - t)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.steppers.base import AbstractStepper


class ParticleStep(AbstractStepper):
    """The time step with which particles move by psi on average, but never more than max_dt (Algorithm 1).

    Args:
        psi: The mean distance that particles move in one step, in the target's own units.
        max_dt: The largest time step.
    """

    psi: float = 0.1
    max_dt: float = 0.02

    def __check_init__(self):
        _checks.positive("psi", self.psi)
        _checks.within("max_dt", self.max_dt, 0, 1, open_low=True)

    def time_step(
        self, t: Scalar, velocity: Float[Array, "n dim"], rates: Float[Array, " n"], log_weights: Float[Array, " n"]
    ) -> Scalar:
        """min(psi / mean_i |phi(x_i)|, max_dt, 1 - t)."""
        speed = jnp.mean(jnp.linalg.norm(velocity, axis=-1))
        return jnp.minimum(jnp.minimum(self.psi / speed, self.max_dt), 1 - t)
