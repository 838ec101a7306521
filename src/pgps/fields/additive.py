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
from pgps.fields.linear import AbstractLinearField, LinearParameters, Units
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
        u, heights, inclines = self._bumps(params, x)
        s = params.units.turn(score)
        return jnp.concatenate([s, s * u + 1, (s[:, None] * heights + inclines).ravel()])

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        u, heights, _ = self._bumps(params, x)
        shift, slope, weights = self._split(params)
        return params.units.leave(shift + slope * u + jnp.sum(weights * heights, axis=1))

    def apply_and_divergence(
        self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and the sum of the slopes."""
        return self.apply(params, t, x), jnp.sum(self._slopes(params, x))

    def log_det(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """sum_i ln |1 + dt f_i'(u_i)|."""
        return jnp.sum(jnp.log(jnp.abs(1 + dt * self._slopes(params, x))))

    def stretch(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """The largest slope at x."""
        return jnp.max(jnp.abs(self._slopes(params, x)))

    def _slopes(self, params: LinearParameters, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        _, _, inclines = self._bumps(params, x)
        _, slope, weights = self._split(params)
        return slope + jnp.sum(weights * inclines, axis=1)

    def _split(self, params: LinearParameters) -> tuple[Float[Array, " dim"], Float[Array, " dim"], Array]:
        """b, a and c."""
        c, dim = params.coefficients, len(params.units.location)
        return c[:dim], c[dim : 2 * dim], c[2 * dim :].reshape(dim, self.num_bumps)

    def _bumps(
        self, params: LinearParameters, x: Float[Array, " dim"]
    ) -> tuple[Float[Array, " dim"], Float[Array, "dim bumps"], Float[Array, "dim bumps"]]:
        """The particle in its units, and the bumps of each coordinate and their slopes there."""
        u, bumps = params.units.enter(x), params.basis
        z = (u[:, None] - bumps.places) / bumps.widths
        heights = jnp.exp(-0.5 * z**2)
        return u, heights, -z / bumps.widths * heights
