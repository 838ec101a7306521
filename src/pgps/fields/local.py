"""The locally affine field: soft clusters, each with a shift and a scaling of its own.

    phi(u) = sum_k pi_k(u) (b_k + a_k * (u - m_k)),      pi_k(u) ~ exp(-|u - m_k|^2 / (2 h^2)).

It is linear in a_k and b_k, and made for targets with several modes. With v_k = b_k + a_k * (u - m_k) the Jacobian is
diagonal plus a matrix of rank K,

    grad phi = diag(sum_k pi_k a_k) + sum_k v_k (grad pi_k)^T,

so that the determinant of I + dt grad phi is taken on a K x K matrix. Sums over clusters with maps that all particles
share are products of matrices; a small product for each particle is a sum over an array of all, which XLA does faster.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.linear import AbstractLinearField, LinearParameters, Units

# Lloyd's iterations that place the clusters; as they go on from the last ones, a run makes many.
_NUM_ITERATIONS = 5
# Determinants of more rows are LAPACK's.
_MOST_ROWS = 6


class Clusters(NamedTuple):
    """The clusters' centres m_k, and their common variance h^2."""

    centers: Float[Array, "clusters dim"]
    variance: Scalar


class Local(AbstractLinearField):
    """Soft clusters with a diagonal affine map each.

    Args:
        num_clusters: Clusters, K.
    """

    num_clusters: int = eqx.field(static=True, default=4)

    def __check_init__(self):
        _checks.whole("num_clusters", self.num_clusters, at_least=1)

    def init(self, key: Array, dim: int, dtype: Any) -> LinearParameters:
        """No movement; centres at random."""
        centers = jax.random.normal(key, (self.num_clusters, dim), dtype)
        coefficients = jnp.zeros(2 * self.num_clusters * dim, dtype)
        return LinearParameters(coefficients, Units.standard(dim, dtype), Clusters(centers, jnp.ones((), dtype)))

    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Place the clusters by k-means, from where they were and from some particles, whichever comes out closer."""
        units, last = Units.of(population.particles), params.units
        assert isinstance(last, Units)
        points = units.enter(population.particles)
        before = units.enter(last.location + last.scale * params.basis.centers)
        afresh = points[jnp.linspace(0, len(points) - 1, self.num_clusters).astype(int)]

        def improve(_: Int[Array, ""], centers: Float[Array, "clusters dim"]) -> Float[Array, "clusters dim"]:
            members = jax.nn.one_hot(jnp.argmin(_squares(points, centers), axis=1), len(centers), dtype=points.dtype)
            counts = jnp.sum(members, axis=0)
            means = members.T @ points / jnp.maximum(counts, 1)[:, None]
            return jnp.where(counts[:, None] > 0, means, centers)

        def clusters(first: Float[Array, "clusters dim"]) -> Clusters:
            centers = jax.lax.fori_loop(0, _NUM_ITERATIONS, improve, first)
            within = jnp.mean(jnp.min(_squares(points, centers), axis=1)) / points.shape[1]
            return Clusters(centers, jnp.maximum(within, 1e-6))

        both = jax.lax.map(clusters, jnp.stack([before, afresh]))
        return params._replace(units=units, basis=jax.tree.map(lambda leaf: leaf[jnp.argmin(both.variance)], both))

    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """pi_k score_i + d_i pi_k for b_ki, and (pi_k score_i + d_i pi_k) (u - m_k)_i + pi_k for a_ki."""
        offsets, shares, slopes = self._clusters(params, x)
        shifts = shares[:, None] * params.units.turn(score) + slopes
        return jnp.stack([shifts, shifts * offsets + shares[:, None]]).ravel()

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        _, shares, _ = self._clusters(params, x)
        return params.units.leave(self._velocity(params, x, shares))

    def apply_and_divergence(
        self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and its divergence."""
        offsets, shares, slopes = self._clusters(params, x)
        shift, scaling = self._maps(params)
        divergence = shares @ jnp.sum(scaling, axis=1) + jnp.sum((shift + scaling * offsets) * slopes)
        return params.units.leave(self._velocity(params, x, shares)), divergence

    def log_det(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt grad phi)|, on the side of the clusters."""
        offsets, shares, slopes = self._clusters(params, x)
        shift, scaling = self._maps(params)
        expansion = 1 + dt * shares @ scaling
        moves = dt * (shift + scaling * offsets)
        small = jnp.eye(len(shares), dtype=x.dtype) + _products(slopes, moves / expansion)
        return jnp.sum(jnp.log(jnp.abs(expansion))) + _log_det(small)

    def stretch(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """The largest scaling, and the size of what the clusters' borders add."""
        offsets, shares, slopes = self._clusters(params, x)
        shift, scaling = self._maps(params)
        # The slopes of the shares sum to 0, so that a move that all clusters share adds nothing.
        moves = shift + scaling * offsets
        moves -= jnp.mean(moves, axis=0)
        # |moves^T slopes|, on the side of the clusters: a matrix for each particle would take N x D x D numbers.
        squares = jnp.sum(_products(moves, moves) * _products(slopes, slopes))
        return jnp.max(jnp.abs(shares @ scaling)) + jnp.sqrt(jnp.maximum(squares, 0.0))

    def _maps(self, params: LinearParameters) -> Float[Array, "2 clusters dim"]:
        """b and a of every cluster."""
        return params.coefficients.reshape(2, self.num_clusters, -1)

    def _velocity(
        self, params: LinearParameters, x: Float[Array, " dim"], shares: Float[Array, " clusters"]
    ) -> Float[Array, " dim"]:
        """phi in the particles' units: the shares' mean of maps u -> (b_k - a_k m_k) + a_k u."""
        shift, scaling = self._maps(params)
        return shares @ (shift - scaling * params.basis.centers) + (shares @ scaling) * params.units.enter(x)

    def _clusters(
        self, params: LinearParameters, x: Float[Array, " dim"]
    ) -> tuple[Float[Array, "clusters dim"], Float[Array, " clusters"], Float[Array, "clusters dim"]]:
        """u - m_k, pi_k(u) and grad pi_k(u)."""
        centers, variance = params.basis
        offsets = params.units.enter(x) - centers
        shares = jax.nn.softmax(-0.5 * jnp.sum(offsets**2, axis=1) / variance)
        # grad ln pi_k = -(u - m_k) / h^2 + sum_l pi_l (u - m_l) / h^2 = (m_k - sum_l pi_l m_l) / h^2.
        slopes = shares[:, None] * (centers - shares @ centers) / variance
        return offsets, shares, slopes


def _squares(points: Float[Array, "n dim"], centers: Float[Array, "clusters dim"]) -> Float[Array, "n clusters"]:
    """|u - m_k|^2 up to a term that is the same for every k, and that term."""
    cross = -2 * points @ centers.T + jnp.sum(centers**2, axis=1)
    return jnp.maximum(cross + jnp.sum(points**2, axis=1, keepdims=True), 0.0)


def _products(one: Float[Array, "k dim"], other: Float[Array, "k dim"]) -> Float[Array, "k k"]:
    """The inner products of each two rows."""
    return jnp.sum(one[:, None] * other, axis=-1)


def _log_det(matrix: Float[Array, "k k"]) -> Scalar:
    """ln |det|, by elimination with pivots; written out for a few rows, so that many particles are one vector."""
    num = len(matrix)
    if num > _MOST_ROWS:
        return jnp.linalg.slogdet(matrix)[1]
    rows, log_det = [list(row) for row in matrix], jnp.zeros((), matrix.dtype)
    for i in range(num):
        for j in range(i + 1, num):
            swaps = jnp.abs(rows[j][i]) > jnp.abs(rows[i][i])
            both = list(zip(rows[i], rows[j], strict=True))
            rows[i] = [jnp.where(swaps, b, a) for a, b in both]
            rows[j] = [jnp.where(swaps, a, b) for a, b in both]
        pivot = rows[i][i]
        log_det += jnp.log(jnp.abs(pivot))
        for j in range(i + 1, num):
            share = jnp.where(pivot == 0, 0.0, rows[j][i] / pivot)
            rows[j] = [b - share * a for a, b in zip(rows[i], rows[j], strict=True)]
    return log_det
