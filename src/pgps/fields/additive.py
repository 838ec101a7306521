"""The additive field: each coordinate moves by a function of itself, phi_i(u) = f_i(u_i).

    f_i(u) = b_i + a_i u + sum_k c_ik B((u - q_ik) / h_ik),      B(z) = exp(-z^2 / 2),

with bumps at quantiles q_ik of the particles. Its Jacobian is diagonal, so that the determinant costs nothing. It is
exact where coordinates are independent, however many modes each has.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.linear import AbstractLinearField, LinearParameters, Units, as_columns
from pgps.quantiles import quantiles

# Bumps sit between these quantiles, at this multiple of the distance to their neighbours in width.
_OUTERMOST = 0.02
_OVERLAP = 1.2
# The least width of a bump, in standard deviations of the particles.
_NARROWEST = 1e-2


class Bumps(NamedTuple):
    """Where the bumps of each coordinate are, and how wide."""

    places: Float[Array, "dim bumps"]
    widths: Float[Array, "dim bumps"]


class Additive(AbstractLinearField):
    """One function per coordinate.

    Args:
        num_bumps: Bumps per coordinate, besides a constant and a slope.
    """

    num_bumps: int = eqx.field(static=True, default=8)

    def __check_init__(self):
        _checks.whole("num_bumps", self.num_bumps, at_least=2)

    def init(self, key: Array, dim: int, dtype: Any) -> LinearParameters:
        """No movement; bumps from -2 to 2."""
        places = jnp.tile(jnp.linspace(-2, 2, self.num_bumps, dtype=dtype), (dim, 1))
        bumps = Bumps(places, jnp.full_like(places, _OVERLAP * 4 / (self.num_bumps - 1)))
        return LinearParameters(jnp.zeros(dim * (self.num_bumps + 2), dtype), Units.standard(dim, dtype), bumps)

    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Place the bumps at the particles' quantiles."""
        units = Units.of(population.particles)
        levels = np.linspace(_OUTERMOST, 1 - _OUTERMOST, self.num_bumps)
        places = quantiles(units.enter(population.particles), levels).T
        widths = jnp.maximum(_OVERLAP * jnp.asarray(jnp.gradient(places, axis=1)), _NARROWEST)
        return params._replace(units=units, basis=Bumps(places, widths))

    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """score_i psi(u_i) + psi'(u_i) for each function psi of each coordinate: constants, slopes, bumps."""
        return self._features(params, params.units.enter(x), params.units.turn(score))

    def rows(
        self, params: LinearParameters, particles: Float[Array, "n dim"], scores: Float[Array, "n dim"]
    ) -> Float[Array, "features n"]:
        """The same for many particles."""
        return self._features(params, params.units.enter(particles).T, params.units.turn(scores).T)

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        return params.units.leave(self._flow(params, params.units.enter(x))[0])

    def apply_and_divergence(
        self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and the sum of the slopes."""
        velocity, slopes = self._flow(params, params.units.enter(x))
        return params.units.leave(velocity), jnp.sum(slopes)

    def flows(
        self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"], key: Array
    ) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
        """The same for many particles."""
        velocity, slopes = self._flow(params, params.units.enter(particles).T)
        return params.units.leave(velocity.T), jnp.sum(slopes, axis=0)

    def log_det(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """sum_i ln |1 + dt f_i'(u_i)|."""
        return self.log_dets(params, t, x[None], dt)[0]

    def log_dets(
        self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"], dt: Scalar
    ) -> Float[Array, " n"]:
        """The same for many particles."""
        _, slopes = self._flow(params, params.units.enter(particles).T)
        return jnp.sum(jnp.log(jnp.abs(1 + dt * slopes)), axis=0)

    def stretch(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """The largest slope at x."""
        return self.stretches(params, t, x[None])[0]

    def stretches(self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """The same for many particles."""
        _, slopes = self._flow(params, params.units.enter(particles).T)
        return jnp.max(jnp.abs(slopes), axis=0)

    # What follows takes one particle u, or many as columns.

    def _features(
        self, params: LinearParameters, u: Float[Array, " dim *n"], score: Float[Array, " dim *n"]
    ) -> Float[Array, " features *n"]:
        heights, inclines = self._bumps(params, u)
        bumps = score[:, None] * heights + inclines
        return jnp.concatenate([score, score * u + 1, bumps.reshape(-1, *u.shape[1:])])

    def _flow(
        self, params: LinearParameters, u: Float[Array, " dim *n"]
    ) -> tuple[Float[Array, " dim *n"], Float[Array, " dim *n"]]:
        """f_i(u_i) and f_i'(u_i)."""
        heights, inclines = self._bumps(params, u)
        c, dim = params.coefficients, len(u)
        shift, slope = (as_columns(part, u) for part in (c[:dim], c[dim : 2 * dim]))
        weights = as_columns(c[2 * dim :].reshape(dim, self.num_bumps), u)
        return shift + slope * u + jnp.sum(weights * heights, axis=1), slope + jnp.sum(weights * inclines, axis=1)

    def _bumps(
        self, params: LinearParameters, u: Float[Array, " dim *n"]
    ) -> tuple[Float[Array, " dim bumps *n"], Float[Array, " dim bumps *n"]]:
        """The bumps of each coordinate, and their slopes."""
        places, rates = (as_columns(table, u) for table in (params.basis.places, 1 / params.basis.widths))
        z = (u[:, None] - places) * rates
        heights = jnp.exp(-0.5 * z**2)
        return heights, -z * rates * heights
