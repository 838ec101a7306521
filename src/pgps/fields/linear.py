"""Fields that are linear in their coefficients, phi(x) = sum_p c_p psi_p(x), so that one solve fits them.

The residual of such a field is linear in c, too:

    r(x) = d/dt ln p_t(x) + sum_p c_p g_p(x),      g_p = score_t . psi_p + div psi_p.

Members work in the particles' own units, u = (x - location) / scale. There the field is phi / scale and the score is
scale * score, so that neither g_p nor the determinant of x -> x + dt phi(x) changes.
"""

import abc
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from pgps.density import Population
from pgps.fields.base import AbstractField


class Units(NamedTuple):
    """The particles' location and scale in each coordinate."""

    location: Float[Array, " dim"]
    scale: Float[Array, " dim"]

    @classmethod
    def standard(cls, dim: int, dtype: Any) -> "Units":
        """No change of units."""
        return cls(jnp.zeros(dim, dtype), jnp.ones(dim, dtype))

    @classmethod
    def of(cls, particles: Float[Array, "n dim"]) -> "Units":
        """The particles' mean and standard deviation."""
        location, spread = jnp.mean(particles, axis=0), jnp.std(particles, axis=0)
        # A coordinate that is constant up to rounding has no scale of its own.
        constant = spread <= 100 * jnp.finfo(particles.dtype).eps * jnp.abs(location)
        return cls(location, jnp.where(constant, 1.0, spread))

    def enter(self, x: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        """A position in these units."""
        return (x - self.location) / self.scale


class LinearParameters(NamedTuple):
    """The coefficients, and what the basis functions psi_p are made of."""

    coefficients: Float[Array, " features"]
    units: Units
    basis: PyTree


class AbstractLinearField(AbstractField):
    """A field that is linear in its coefficients; they start at 0, where the field moves nothing."""

    @abc.abstractmethod
    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """g_p(x) = score . psi_p(x) + div psi_p(x) for each basis function, given the score at x."""

    @abc.abstractmethod
    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Place the basis functions by the population that the field is about to be fitted to."""
