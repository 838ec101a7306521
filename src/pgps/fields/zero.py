"""The field that moves nothing: phi = 0, training-free PGPS."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps.fields.base import AbstractField


class Zero(AbstractField):
    """No transport: particles move by adjustment alone."""

    def init(self, key: Array, dim: int, dtype: Any) -> None:
        """No parameters."""
        return None

    def apply(self, params: None, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi_t(x) = 0."""
        return jnp.zeros_like(x)

    def apply_and_divergence(
        self, params: None, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """Zero, and zero."""
        return jnp.zeros_like(x), jnp.zeros((), x.dtype)

    def log_det(self, params: None, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """The identity's log-determinant, 0."""
        return jnp.zeros((), x.dtype)
