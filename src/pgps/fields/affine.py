"""The affine field: phi(u) = b + A u, which carries any Gaussian to any other.

A is full where the particle has few coordinates. Where it has many, a full A would have more coefficients than there
are particles: there A = diag(a) + V C V^T with the particles' leading principal directions V, so that

    det(I + dt A) = det(I + dt diag(a)) det(I_r + dt C V^T (I + dt diag(a))^-1 V).
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import norm_bound
from pgps.fields.linear import AbstractLinearField, LinearParameters, Units


class Affine(AbstractLinearField):
    """A shift and a linear map.

    Args:
        full_up_to: The largest dimension with a full matrix.
        rank: Beyond it: the rank of what is added to a diagonal matrix; 0 is diagonal.
    """

    full_up_to: int = eqx.field(static=True, default=16)
    rank: int = eqx.field(static=True, default=8)

    def __check_init__(self):
        _checks.whole("full_up_to", self.full_up_to, at_least=0)
        _checks.whole("rank", self.rank, at_least=0)

    def init(self, key: Array, dim: int, dtype: Any) -> LinearParameters:
        """No movement, and no directions as yet."""
        if dim <= self.full_up_to:
            return LinearParameters(jnp.zeros(dim + dim**2, dtype), Units.standard(dim, dtype), None)
        rank = min(self.rank, dim)
        directions = jnp.eye(dim, rank, dtype=dtype)
        return LinearParameters(jnp.zeros(2 * dim + rank**2, dtype), Units.standard(dim, dtype), directions)

    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Take the particles' units, and their leading principal directions."""
        units = Units.of(population.particles)
        if params.basis is None:
            return params._replace(units=units)
        dim, rank = params.basis.shape
        if rank == 0:
            return params._replace(units=units)
        points = units.enter(population.particles)
        # On the smaller side: of a few particles in many dimensions the n x n matrix of products.
        if len(points) < dim:
            _, vectors = jnp.linalg.eigh(points @ points.T)
            directions = points.T @ vectors[:, -rank:]
            directions /= jnp.maximum(jnp.linalg.norm(directions, axis=0), jnp.finfo(points.dtype).tiny)
        else:
            _, vectors = jnp.linalg.eigh(points.T @ points)
            directions = vectors[:, -rank:]
        return params._replace(units=units, basis=directions)

    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """The score for b, score_i u_j + [i = j] for A, in the particles' units."""
        u, s = params.units.enter(x), params.units.scale * score
        if params.basis is None:
            return jnp.concatenate([s, (s[:, None] * u + jnp.eye(x.size, dtype=x.dtype)).ravel()])
        V = params.basis
        low = (s @ V)[:, None] * (u @ V) + V.T @ V
        return jnp.concatenate([s, s * u + 1, low.ravel()])

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        u = params.units.enter(x)
        shift, *matrices = self._split(params)
        if params.basis is None:
            return params.units.scale * (shift + matrices[0] @ u)
        diagonal, low = matrices
        return params.units.scale * (shift + diagonal * u + params.basis @ (low @ (params.basis.T @ u)))

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
        if params.basis is None:
            return c[:dim], c[dim:].reshape(dim, dim)
        rank = params.basis.shape[1]
        return c[:dim], c[dim : 2 * dim], c[2 * dim :].reshape(rank, rank)
