"""Fields that are linear in their coefficients, phi(x) = sum_p c_p psi_p(x), so that one solve fits them.

The residual of such a field is linear in c, too:

    r(x) = d/dt ln p_t(x) + sum_p c_p g_p(x),      g_p = score_t . psi_p + div psi_p.

Members work in the particles' own units, u = (x - location) / scale. There the field is phi / scale and the score is
scale * score, so that neither g_p nor the determinant of x -> x + dt phi(x) changes. Any matrix may be the scale.
"""

import abc
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from pgps.density import Population
from pgps.fields.base import AbstractField

# The least number of particles for each principal axis.
_LEAST_PARTICLES = 4


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

    def turn(self, score: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        """A score in these units."""
        return self.scale * score

    def leave(self, velocity: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        """A velocity, given in these units, in those of the particles."""
        return self.scale * velocity


class Axes(NamedTuple):
    """The particles' location and principal axes, each as long as their standard deviation along it, and the inverse.

    In these units particles differ as much in every direction, however strongly their coordinates are correlated.
    """

    location: Float[Array, " dim"]
    axes: Float[Array, "dim dim"]
    inverse: Float[Array, "dim dim"]

    @classmethod
    def standard(cls, dim: int, dtype: Any) -> "Axes":
        """No change of units."""
        return cls.along_coordinates(Units.standard(dim, dtype))

    @classmethod
    def along_coordinates(cls, units: Units) -> "Axes":
        """The coordinates themselves, in units of their own."""
        return cls(units.location, jnp.diag(units.scale), jnp.diag(1 / units.scale))

    @classmethod
    def fitting(cls, particles: Float[Array, "n dim"]) -> "Axes":
        """The principal axes, or of too few particles the coordinates."""
        if len(particles) < _LEAST_PARTICLES * particles.shape[1]:
            return cls.along_coordinates(Units.of(particles))
        return cls.of(particles)

    @classmethod
    def of(cls, particles: Float[Array, "n dim"]) -> "Axes":
        """The principal axes in units of the coordinates' standard deviations, the longest last."""
        units = Units.of(particles)
        points = units.enter(particles)
        values, vectors = jnp.linalg.eigh(points.T @ points / len(points))
        # An axis along which particles do not differ, up to rounding, has no length of its own.
        lengths = jnp.sqrt(jnp.maximum(values, 10 * jnp.finfo(values.dtype).eps * jnp.maximum(values[-1], 1.0)))
        return cls(units.location, units.scale[:, None] * vectors * lengths, (vectors / lengths).T / units.scale)

    def enter(self, x: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        """A position in these units."""
        return (x - self.location) @ self.inverse.T

    def turn(self, score: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        """A score in these units."""
        return score @ self.axes

    def leave(self, velocity: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        """A velocity, given in these units, in those of the particles."""
        return velocity @ self.axes.T


class LinearParameters(NamedTuple):
    """The coefficients, and what the basis functions psi_p are made of."""

    coefficients: Float[Array, " features"]
    units: Units | Axes
    basis: PyTree


class AbstractLinearField(AbstractField):
    """A field that is linear in its coefficients; they start at 0, where the field moves nothing."""

    def suits(self, dim: int) -> bool:
        """Whether a `fields.Selection` should try it in so many dimensions; a member that should not says so."""
        return True

    @abc.abstractmethod
    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """g_p(x) = score . psi_p(x) + div psi_p(x) for each basis function, given the score at x."""

    def rows(
        self, params: LinearParameters, particles: Float[Array, "n dim"], scores: Float[Array, "n dim"]
    ) -> Float[Array, "features n"]:
        """The features of many particles, which are columns."""
        return jax.vmap(partial(self.features, params), out_axes=1)(particles, scores)

    @abc.abstractmethod
    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Place the basis functions by the population that the field is about to be fitted to."""


def as_columns(table: Float[Array, "..."], u: Float[Array, " dim *n"]) -> Float[Array, "..."]:
    """Numbers that all particles share, to be combined with one particle u or with many as columns."""
    return table.reshape(*table.shape, *[1] * (u.ndim - 1))
