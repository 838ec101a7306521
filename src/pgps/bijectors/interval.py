"""Numbers between two bounds: y = low + (high - low) s(x) with s(x) = 1 / (1 + exp(-x)).

ln |dy/dx| = ln(high - low) + ln s(x) + ln s(-x).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.bijectors.base import AbstractBijector, log_inside


class Interval(AbstractBijector):
    """Numbers between two bounds, each by its log-odds.

    Args:
        low: The lower bound: a number, or an array that broadcasts to the parameter's shape.
        high: The upper bound, likewise.
    """

    low: float | Float[Array | np.ndarray, "..."]
    high: float | Float[Array | np.ndarray, "..."]

    def __check_init__(self):
        low, high = np.asarray(self.low), np.asarray(self.high)
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
            raise ValueError(
                f"low must lie below high, both finite, got low={_checks.show(self.low)} and "
                f"high={_checks.show(self.high)}; bijectors.Positive has one bound alone"
            )

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Low + (high - low) s(x)."""
        low, width = self._bounds(x)
        return low + width * jax.nn.sigmoid(x)

    def inverse(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log-odds of the share (y - low) / (high - low)."""
        low, width = self._bounds(y)
        return log_inside(y - low) - log_inside(low + width - y)

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        """The sum of ln(high - low) + ln s(x) + ln s(-x)."""
        _, width = self._bounds(x)
        return jnp.sum(jnp.log(width) + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x))

    def _bounds(self, x: Float[Array, "..."]) -> tuple[Array, Array]:
        """The lower bound and the width."""
        low, high = jnp.asarray(self.low, x.dtype), jnp.asarray(self.high, x.dtype)
        try:
            fits = jnp.broadcast_shapes(low.shape, high.shape, x.shape) == x.shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"low and high must broadcast to the parameter's shape {x.shape}, got shapes {low.shape} and "
                f"{high.shape}; make them agree"
            )
        return low, high - low
