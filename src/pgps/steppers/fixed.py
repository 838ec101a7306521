"""Steps of one length, as in appendix C and training-free PGPS."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.steppers.base import AbstractStepper


class Fixed(AbstractStepper):
    """A constant time step; the last one ends at t = 1.

    Args:
        dt: The time step, in (0, 1].
    """

    dt: float = 0.01

    def __check_init__(self):
        _checks.within("dt", self.dt, 0, 1, open_low=True)

    def time_step(
        self, t: Scalar, velocity: Float[Array, "n dim"], rates: Float[Array, " n"], log_weights: Float[Array, " n"]
    ) -> Scalar:
        """min(dt, 1 - t)."""
        return jnp.minimum(self.dt, 1 - t)
