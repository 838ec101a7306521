"""The interface of a bijector: y = f(x), from coordinates without constraints to those of the user's density.

A density p of y is one of x too, by the change of variables: ln p(f(x)) + ln |det df/dx|.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar


class AbstractBijector(eqx.Module):
    """A smooth map of one array without constraints onto one with them, and back."""

    @abc.abstractmethod
    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The constrained value y = f(x)."""

    @abc.abstractmethod
    def inverse(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """The unconstrained value x, with f(x) = y."""

    @abc.abstractmethod
    def log_det(self, x: Float[Array, "..."]) -> Scalar:
        """ln |det df/dx|, summed over the whole array."""


def log_inside(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """ln y; a 0, where rounding has put a positive number, counts as the smallest that there is."""
    return jnp.log(jnp.where(y == 0, jnp.finfo(y.dtype).tiny, y))


def check_vector(bijector: AbstractBijector, name: str, array: Float[Array, "..."], least: int) -> None:
    """Raise unless the array has a last axis, of at least this length, for the bijector to act on."""
    if array.ndim == 0 or array.shape[-1] < least:
        raise ValueError(
            f"{name} must be a vector of at least {least} for bijectors.{type(bijector).__name__}, got shape "
            f"{array.shape}; give it a last axis, or take another bijector"
        )
