"""The affine field: phi(u) = b + A u, which carries any Gaussian to any other.

Where the particle has few coordinates, A is a full matrix in units of the particles' principal axes. In those of the
coordinates, where these are strongly correlated, a regression would have to tell apart terms that nearly cancel.

Where it has more, A is symmetric, with half of the coefficients. For Gaussians that is enough: from one of covariance S
to its neighbour on a path, whose inverse covariance grows at a rate R, leads the field -S R x / 2, which in those units
has the matrix -S^(1/2) R S^(1/2) / 2.

Where it has many, that would still be more coefficients than there are particles: there, in units of the coordinates,
A = diag(a) + V C V^T with the particles' leading principal directions V, so that

    det(I + dt A) = det(I + dt diag(a)) det(I_r + dt C V^T (I + dt diag(a))^-1 V).
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import norm_bound
from pgps.fields.linear import AbstractLinearField, Axes, LinearParameters, Units, as_columns


class Affine(AbstractLinearField):
    """A shift and a linear map.

    Args:
        full_up_to: The largest dimension with a full matrix.
        symmetric_up_to: The largest dimension with a symmetric one.
        rank: Beyond both: the rank of what is added to a diagonal matrix; 0 is diagonal.
    """

    full_up_to: int = eqx.field(static=True, default=16)
    symmetric_up_to: int = eqx.field(static=True, default=32)
    rank: int = eqx.field(static=True, default=8)

    def __check_init__(self):
        _checks.whole("full_up_to", self.full_up_to, at_least=0)
        _checks.whole("symmetric_up_to", self.symmetric_up_to, at_least=0)
        _checks.whole("rank", self.rank, at_least=0)

    def init(self, key: Array, dim: int, dtype: Any) -> LinearParameters:
        """No movement, and no directions as yet."""
        if dim <= max(self.full_up_to, self.symmetric_up_to):
            num = dim**2 if dim <= self.full_up_to else dim * (dim + 1) // 2
            return LinearParameters(jnp.zeros(dim + num, dtype), Axes.standard(dim, dtype), None)
        rank = min(self.rank, dim)
        directions = jnp.eye(dim, rank, dtype=dtype)
        return LinearParameters(jnp.zeros(2 * dim + rank**2, dtype), Units.standard(dim, dtype), directions)

    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Take the particles' units, and their leading principal directions."""
        particles = population.particles
        if params.basis is None:
            return params._replace(units=Axes.fitting(particles))
        units, rank = Units.of(particles), params.basis.shape[1]
        if rank == 0:
            return params._replace(units=units)
        return params._replace(units=units, basis=_leading_directions(units.enter(particles), rank))

    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """The score for b and score_i u_j + [i = j] for A, in the particles' units; of a symmetric A, sums of two."""
        return self._features(params, params.units.enter(x), params.units.turn(score))

    def rows(
        self, params: LinearParameters, particles: Float[Array, "n dim"], scores: Float[Array, "n dim"]
    ) -> Float[Array, "features n"]:
        """The same for many particles."""
        return self._features(params, params.units.enter(particles).T, params.units.turn(scores).T)

    def _features(
        self, params: LinearParameters, u: Float[Array, " dim *n"], s: Float[Array, " dim *n"]
    ) -> Float[Array, " features *n"]:
        """For one particle, or for many as columns."""
        if params.basis is None:
            each = s[:, None] * u + as_columns(jnp.eye(len(u), dtype=u.dtype), u)
            if len(u) > self.full_up_to:
                rows, columns = np.triu_indices(len(u))
                mirrored = as_columns(jnp.asarray(rows != columns), u)
                each = each[rows, columns] + jnp.where(mirrored, each[columns, rows], 0.0)
            return jnp.concatenate([s, each.reshape(-1, *u.shape[1:])])
        V = params.basis
        low = (V.T @ s)[:, None] * (V.T @ u) + as_columns(V.T @ V, u)
        return jnp.concatenate([s, s * u + 1, low.reshape(-1, *u.shape[1:])])

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        u = params.units.enter(x)
        shift, *matrices = self._split(params)
        if params.basis is None:
            return params.units.leave(shift + matrices[0] @ u)
        diagonal, low = matrices
        return params.units.leave(shift + diagonal * u + params.basis @ (low @ (params.basis.T @ u)))

    def apply_and_divergence(
        self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x), and the trace of A."""
        _, *matrices = self._split(params)
        if params.basis is None:
            return self.apply(params, t, x), jnp.trace(matrices[0])
        diagonal, low = matrices
        return self.apply(params, t, x), jnp.sum(diagonal) + jnp.sum(low * (params.basis.T @ params.basis).T)

    def log_det(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt A)|: one number for all particles."""
        _, *matrices = self._split(params)
        if params.basis is None:
            return jnp.linalg.slogdet(jnp.eye(x.size, dtype=x.dtype) + dt * matrices[0])[1]
        (diagonal, low), V = matrices, params.basis
        expansion = 1 + dt * diagonal
        small = jnp.eye(len(low), dtype=x.dtype) + dt * low @ (V.T @ (V / expansion[:, None]))
        return jnp.sum(jnp.log(jnp.abs(expansion))) + jnp.linalg.slogdet(small)[1]

    def stretch(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """A bound on the norm of A."""
        _, *matrices = self._split(params)
        if params.basis is None:
            return norm_bound(matrices[0])
        diagonal, low = matrices
        # Principal directions have length 1, and those of different variance are at right angles.
        return jnp.max(jnp.abs(diagonal)) + norm_bound(low)

    def _split(self, params: LinearParameters) -> tuple[Float[Array, " dim"], ...]:
        """b and A, or b, a and C."""
        c, dim = params.coefficients, len(params.units.location)
        if params.basis is None and dim <= self.full_up_to:
            return c[:dim], c[dim:].reshape(dim, dim)
        if params.basis is None:
            upper = jnp.zeros((dim, dim), c.dtype).at[np.triu_indices(dim)].set(c[dim:])
            return c[:dim], upper + jnp.triu(upper, 1).T
        rank = params.basis.shape[1]
        return c[:dim], c[dim : 2 * dim], c[2 * dim :].reshape(rank, rank)


def _leading_directions(points: Float[Array, "n dim"], rank: int) -> Float[Array, "dim rank"]:
    """The directions in which centred points differ most."""
    # On the smaller side: of a few particles in many dimensions the n x n matrix of products.
    if len(points) < points.shape[1]:
        _, vectors = jnp.linalg.eigh(points @ points.T)
        directions = points.T @ vectors[:, -rank:]
        return directions / jnp.maximum(jnp.linalg.norm(directions, axis=0), jnp.finfo(points.dtype).tiny)
    _, vectors = jnp.linalg.eigh(points.T @ points)
    return vectors[:, -rank:]
