"""The quadratic field, which bends what an affine one can only stretch: bananas, and densities along a curve.

    phi_i(u) = w(u) sum_p c_pi m_p(u),      w(u) = (1 + |u|^2 / 16 D)^(-1),

with the monomials m_p = 1, u_j, u_j u_k in a few dimensions, and 1, u_j, u_j^2 in some more; in many they would be more
than particles can tell apart. The damping w keeps the field bounded, and so its Jacobian:

    grad phi = w sum_p c_p (grad m_p + m_p grad ln w)^T,      grad ln w = -w u / 8 D.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import norm_bound
from pgps.fields.determinants import log_det_of_sum
from pgps.fields.linear import AbstractLinearField, Axes, LinearParameters, Units, as_columns

# Beyond so many standard deviations, times the square root of the dimension, the field grows no more.
_REACH = 4.0


class Quadratic(AbstractLinearField):
    """Monomials of degree 2, damped far out.

    Args:
        full_up_to: The largest dimension with products of two coordinates; D + D^2 + D^2 (D+1) / 2 coefficients.
        squares_up_to: Up to this dimension squares alone, D + 2 D^2 coefficients; a selection does without the family
            in more, and in a single one, where `fields.Additive` can do as much.
    """

    full_up_to: int = eqx.field(static=True, default=5)
    squares_up_to: int = eqx.field(static=True, default=8)

    def __check_init__(self):
        _checks.whole("full_up_to", self.full_up_to, at_least=0)
        _checks.whole("squares_up_to", self.squares_up_to, at_least=0)

    def suits(self, dim: int) -> bool:
        """Whether it has something to say there, and few enough coefficients."""
        return 1 < dim <= max(self.full_up_to, self.squares_up_to)

    def init(self, key: Array, dim: int, dtype: Any) -> LinearParameters:
        """No movement."""
        num_monomials = 1 + dim + len(self._pairs(dim)[0])
        return LinearParameters(jnp.zeros(num_monomials * dim, dtype), Axes.standard(dim, dtype), None)

    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Take the particles' units: products of coordinates go with any axes, squares with the coordinates' own."""
        particles = population.particles
        if particles.shape[1] <= self.full_up_to:
            return params._replace(units=Axes.fitting(particles))
        return params._replace(units=Axes.along_coordinates(Units.of(particles)))

    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """w (m_p (score + grad ln w)_i + d_i m_p) for each c_pi."""
        return self._features(params.units.enter(x), params.units.turn(score))

    def rows(
        self, params: LinearParameters, particles: Float[Array, "n dim"], scores: Float[Array, "n dim"]
    ) -> Float[Array, "features n"]:
        """The same for many particles."""
        return self._features(params.units.enter(particles).T, params.units.turn(scores).T)

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        return params.units.leave(self._velocity(params, params.units.enter(x)))

    def apply_and_divergence(
        self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and the Jacobian's trace."""
        u = params.units.enter(x)
        return params.units.leave(self._velocity(params, u)), jnp.trace(self._jacobian(params, u))

    def flows(
        self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"], key: Array
    ) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
        """The same for many particles."""
        u = params.units.enter(particles).T
        return params.units.leave(self._velocity(params, u).T), jnp.trace(self._jacobian(params, u))

    def log_det(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt grad phi)|."""
        return self.log_dets(params, t, x[None], dt)[0]

    def log_dets(
        self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"], dt: Scalar
    ) -> Float[Array, " n"]:
        """The same for many particles."""
        jacobian = dt * self._jacobian(params, params.units.enter(particles).T)
        return log_det_of_sum([list(row) for row in jacobian])

    def stretch(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """A bound on the Jacobian's norm."""
        return norm_bound(self._jacobian(params, params.units.enter(x)))

    def stretches(self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """The same for many particles."""
        return norm_bound(self._jacobian(params, params.units.enter(particles).T))

    # What follows takes one particle u, or many as columns.

    def _pairs(self, dim: int) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
        """The coordinates j <= k of each product."""
        if dim <= self.full_up_to:
            return np.triu_indices(dim)
        return np.arange(dim), np.arange(dim)

    def _monomials(
        self, u: Float[Array, " dim *n"]
    ) -> tuple[Float[Array, " monomials *n"], Float[Array, " monomials dim *n"]]:
        """m_p(u), and its gradient."""
        dim, (one, other) = len(u), self._pairs(len(u))
        axes = jnp.broadcast_to(as_columns(jnp.eye(dim, dtype=u.dtype), u), (dim, *u.shape))
        values = jnp.concatenate([jnp.ones_like(u[:1]), u, u[one] * u[other]])
        products = u[one][:, None] * axes[other] + u[other][:, None] * axes[one]
        return values, jnp.concatenate([jnp.zeros_like(axes[:1]), axes, products])

    def _damping(self, u: Float[Array, " dim *n"]) -> tuple[Float[Array, "*n"], Float[Array, " dim *n"]]:
        """w(u) and the gradient of its logarithm."""
        farthest = _REACH**2 * len(u)
        damping = 1 / (1 + jnp.sum(u**2, axis=0) / farthest)
        return damping, -2 / farthest * damping * u

    def _features(self, u: Float[Array, " dim *n"], score: Float[Array, " dim *n"]) -> Float[Array, " features *n"]:
        (values, slopes), (damping, inclines) = self._monomials(u), self._damping(u)
        features = damping * (values[:, None] * (score + inclines) + slopes)
        return features.reshape(-1, *u.shape[1:])

    def _velocity(self, params: LinearParameters, u: Float[Array, " dim *n"]) -> Float[Array, " dim *n"]:
        """phi in the particles' units."""
        return self._damping(u)[0] * (self._table(params, u).T @ self._monomials(u)[0])

    def _jacobian(self, params: LinearParameters, u: Float[Array, " dim *n"]) -> Float[Array, " dim dim *n"]:
        """Row i is the gradient of phi_i, in the particles' units."""
        (values, slopes), (damping, inclines) = self._monomials(u), self._damping(u)
        table = self._table(params, u)
        plain = jnp.tensordot(table.T, slopes, axes=1)
        return damping * (plain + (table.T @ values)[:, None] * inclines)

    def _table(self, params: LinearParameters, u: Float[Array, " dim *n"]) -> Float[Array, "monomials dim"]:
        """c, by monomials and coordinates."""
        return params.coefficients.reshape(-1, len(u))
