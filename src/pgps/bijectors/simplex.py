"""Probabilities that sum to 1, by breaking a stick (the Stan reference manual, "Simplex transform").

A stick of length 1 is broken K - 1 times: with s(x) = 1 / (1 + exp(-x)) and z_k = s(x_k - ln(K - k)),

    y_k = z_k prod_{j<k} (1 - z_j)  for k < K,     y_K = prod_{j<K} (1 - z_j).

The shift ln(K - k) makes x = 0 the uniform vector. In the first K - 1 coordinates of y the Jacobian is triangular:

    ln |det| = sum_{k<K} ln z_k + ln(1 - z_k) + sum_{j<k} ln(1 - z_j).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps.bijectors.base import AbstractBijector, check_vector, log_inside


def _shifts(num_breaks: int, dtype: jnp.dtype) -> Float[Array, " k"]:
    return jnp.log(jnp.arange(num_breaks, 0, -1, dtype=dtype))


def _breaks(x: Float[Array, "*batch k"]) -> tuple[Array, Array, Array]:
    """ln z_k, ln(1 - z_k), and the log of what is left of the stick before each break."""
    log_odds = x - _shifts(x.shape[-1], x.dtype)
    log_kept = jax.nn.log_sigmoid(-log_odds)
    return jax.nn.log_sigmoid(log_odds), log_kept, jnp.cumsum(log_kept, axis=-1) - log_kept


class Simplex(AbstractBijector):
    """Vectors of K probabilities along the last axis, by K - 1 numbers; all 0 gives the uniform vector.

    A density on them is one of the first K - 1 probabilities, as for `jax.scipy.stats.dirichlet.logpdf`.
    """

    def forward(self, x: Float[Array, "*batch k"]) -> Float[Array, "*batch K"]:
        """The lengths of the K pieces."""
        check_vector(self, "x", x, 1)
        log_broken, log_kept, log_left = _breaks(x)
        last = jnp.sum(log_kept, axis=-1, keepdims=True)
        return jnp.exp(jnp.concatenate([log_broken + log_left, last], axis=-1))

    def inverse(self, y: Float[Array, "*batch K"]) -> Float[Array, "*batch k"]:
        """The shifted log-odds of each break."""
        check_vector(self, "y", y, 2)
        # What is left after break k is the sum of the later pieces: 1 - sum of the earlier would lose its digits.
        left = jnp.flip(jnp.cumsum(jnp.flip(y[..., 1:], -1), axis=-1), -1)
        return log_inside(y[..., :-1]) - log_inside(left) + _shifts(y.shape[-1] - 1, y.dtype)

    def log_det(self, x: Float[Array, "*batch k"]) -> Scalar:
        """Of the first K - 1 probabilities, summed over the batch."""
        check_vector(self, "x", x, 1)
        return sum(jnp.sum(part) for part in _breaks(x))  # pyright: ignore[reportReturnType]
