"""Neal's funnel: a normalised density whose width varies by orders of magnitude.

    x_0 ~ N(0, s^2),    x_i | x_0 ~ N(0, exp(x_0)) independently,    i = 1, ..., dim - 1.

Source: Neal, "Slice sampling" (2003), section 8, with the ten dimensions and s = 3 used there.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.initial import Normal
from pgps.targets.base import AbstractTarget, as_floats, is_traced


def _log_variance(first: Float[Array, "..."]) -> Float[Array, "..."]:
    """x_0, floored: the law stays normalised, and its slope finite in single precision, where exp(-x_0) is not."""
    return jnp.maximum(first, -60.0)


class Funnel(AbstractTarget):
    """Neal's funnel; call it for its log-density.

    Args:
        dim: The number of coordinates, of which the first sets the width of the others.
        scale: The standard deviation of the first coordinate.
    """

    dim: int = eqx.field(static=True, default=10)  # pyright: ignore[reportIncompatibleMethodOverride]
    scale: Scalar = eqx.field(converter=as_floats, default=3.0)

    def __check_init__(self):
        _checks.whole("dim", self.dim, at_least=2)
        if not is_traced(self.scale):
            _checks.positive("scale", self.scale)

    @property
    def log_evidence(self) -> float:
        """0: the funnel is normalised."""
        return 0.0

    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """The normalised log-density."""
        first, others = x[0], x[1:]
        log_variance = _log_variance(first)
        squares = (first / self.scale) ** 2 + jnp.sum(others**2) * jnp.exp(-log_variance)
        log_norm = 2 * jnp.log(self.scale) + others.size * log_variance + x.size * math.log(2 * math.pi)
        return -0.5 * (squares + log_norm)

    def sample(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """Independent draws."""
        noise = jax.random.normal(key, (num, self.dim), self.scale.dtype)
        first = self.scale * noise[:, :1]
        return jnp.concatenate([first, jnp.exp(0.5 * _log_variance(first)) * noise[:, 1:]], axis=1)


def funnel(dim: int = 10) -> tuple[Funnel, Normal]:
    """The funnel with a first coordinate of standard deviation 3, from N(0, I)."""
    return Funnel(dim), Normal(shape=(dim,))
