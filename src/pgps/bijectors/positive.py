"""Positive numbers: y = exp(x), so that ln |dy/dx| = x.

The exponential, and not the softplus: the posterior of a scale is nearly Gaussian on the log scale, whatever its unit,
and the Jacobian is exact at any size. NumPyro, PyMC and Stan have the same.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps.bijectors.base import AbstractBijector, log_inside


class Positive(AbstractBijector):
    """Positive numbers, each by its logarithm."""

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(x)."""
        return jnp.exp(x)

    def inverse(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """ln y."""
        return log_inside(y)

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        """The sum of x."""
        return jnp.sum(x)
