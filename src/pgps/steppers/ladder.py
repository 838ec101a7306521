"""A fixed ladder of times, such as the temperatures of annealed importance sampling or SMC."""

from collections.abc import Sequence
from itertools import pairwise

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.steppers.base import AbstractStepper


class Ladder(AbstractStepper):
    """Steps to the next of the given times.

    Args:
        times: Increasing times in (0, 1]; the last one must be 1.
    """

    times: tuple[float, ...] = eqx.field(converter=lambda times: tuple(times) if isinstance(times, Sequence) else times)

    def __check_init__(self):
        if not isinstance(self.times, tuple) or not self.times:
            raise TypeError(
                f"times must be a sequence of numbers, got {_checks.show(self.times)}; as in (0.01, 0.1, 1.0)"
            )
        values = [_checks.number("times", time) for time in self.times]
        if values[0] <= 0 or values[-1] != 1 or any(b <= a for a, b in pairwise(values)):
            raise ValueError(
                f"times must increase from above 0 to 1, got {_checks.show(self.times)}; sort them and end with 1"
            )

    def time_step(
        self, t: Scalar, velocity: Float[Array, "n dim"], rates: Float[Array, " n"], log_weights: Float[Array, " n"]
    ) -> Scalar:
        """From t to the next time of the ladder."""
        times = jnp.stack([jnp.asarray(time, t.dtype) for time in self.times])
        # A time that rounding has left a hair above t is where we are.
        ahead = times > t * (1 + 8 * jnp.finfo(t.dtype).eps)
        return jnp.min(jnp.where(ahead, times, 1.0)) - t
