"""Rising numbers: y_1 = x_1, y_k = y_{k-1} + exp(x_k), so that ln |det dy/dx| = x_2 + ... + x_K.

A mixture whose components are put in order this way has one labelling instead of K!.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps.bijectors.base import AbstractBijector, check_vector, log_inside


class Ordered(AbstractBijector):
    """Vectors whose entries rise along the last axis, by the first and the logarithms of the gaps."""

    def forward(self, x: Float[Array, "*batch K"]) -> Float[Array, "*batch K"]:
        """The first entry, and the sums of the gaps."""
        check_vector(self, "x", x, 1)
        return jnp.cumsum(jnp.concatenate([x[..., :1], jnp.exp(x[..., 1:])], axis=-1), axis=-1)

    def inverse(self, y: Float[Array, "*batch K"]) -> Float[Array, "*batch K"]:
        """The first entry, and the logarithms of the gaps."""
        check_vector(self, "y", y, 1)
        return jnp.concatenate([y[..., :1], log_inside(jnp.diff(y, axis=-1))], axis=-1)

    def log_det(self, x: Float[Array, "*batch K"]) -> Scalar:
        """The sum of the log gaps."""
        check_vector(self, "x", x, 1)
        return jnp.sum(x[..., 1:])
