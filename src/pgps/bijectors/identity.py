"""No constraint: y = x."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps.bijectors.base import AbstractBijector


class Identity(AbstractBijector):
    """Real numbers, as they are."""

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The same."""
        return x

    def inverse(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """The same."""
        return y

    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        """0."""
        return jnp.zeros((), x.dtype)
