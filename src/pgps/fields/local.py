"""The locally affine field: soft clusters, each with a shift and a scaling of its own.

    phi(u) = sum_k pi_k(u) (b_k + a_k * (u - m_k)),      pi_k(u) ~ exp(-|u - m_k|^2 / (2 h^2)).

It is linear in a_k and b_k, and made for targets with several modes. With v_k = b_k + a_k * (u - m_k) the Jacobian is
diagonal plus a matrix of rank K - 1, for the shares' slopes sum to 0:

    grad phi = diag(sum_k pi_k a_k) + sum_(k < K) (v_k - v_K) (grad pi_k)^T,

so that the determinant of I + dt grad phi is taken on a matrix of K - 1 rows. Many particles are columns: a processor
then takes several at once through sums over a few clusters or coordinates.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.determinants import log_det_of_sum
from pgps.fields.linear import AbstractLinearField, LinearParameters, Units, as_columns

# Lloyd's iterations that place the clusters; as they go on from the last ones, a run makes many.
_NUM_ITERATIONS = 3


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
        return self._features(params, params.units.enter(x), params.units.turn(score))

    def rows(
        self, params: LinearParameters, particles: Float[Array, "n dim"], scores: Float[Array, "n dim"]
    ) -> Float[Array, "features n"]:
        """The same for many particles."""
        return self._features(params, params.units.enter(particles).T, params.units.turn(scores).T)

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        u = params.units.enter(x)
        return params.units.leave(self._velocity(params, u, self._clusters(params, u)[1]))

    def apply_and_divergence(
        self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and its divergence."""
        velocity, divergence = self._flow(params, params.units.enter(x))
        return params.units.leave(velocity), divergence

    def flows(
        self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"], key: Array
    ) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
        """The same for many particles."""
        velocity, divergence = self._flow(params, params.units.enter(particles).T)
        return params.units.leave(velocity.T), divergence

    def log_det(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt grad phi)|, on the side of the clusters."""
        return self.log_dets(params, t, x[None], dt)[0]

    def log_dets(
        self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"], dt: Scalar
    ) -> Float[Array, " n"]:
        """The same for many particles."""
        u = params.units.enter(particles).T
        _, shares, slopes = self._clusters(params, u)
        expansion = 1 + dt * self._maps(params)[1].T @ shares
        apart = dt * _apart(self._moves(params, u)) / expansion
        return jnp.sum(jnp.log(jnp.abs(expansion)), axis=0) + log_det_of_sum(_products(slopes[:-1], apart))

    def stretch(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """The largest scaling, and the size of what the clusters' borders add."""
        return self.stretches(params, t, x[None])[0]

    def stretches(self, params: LinearParameters, t: Scalar, particles: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """The same for many particles."""
        u = params.units.enter(particles).T
        _, shares, slopes = self._clusters(params, u)
        apart, slopes = _apart(self._moves(params, u)), slopes[:-1]
        # |apart^T slopes|, on the side of the clusters: a matrix for each particle would take N x D x D numbers.
        inner, outer = _products(apart, apart), _products(slopes, slopes)
        squares = sum(a * b for rows in zip(inner, outer, strict=True) for a, b in zip(*rows, strict=True))
        return jnp.max(jnp.abs(self._maps(params)[1].T @ shares), axis=0) + jnp.sqrt(jnp.maximum(squares, 0.0))

    # What follows takes one particle u, or many as columns.

    def _features(
        self, params: LinearParameters, u: Float[Array, " dim *n"], score: Float[Array, " dim *n"]
    ) -> Float[Array, " features *n"]:
        offsets, shares, slopes = self._clusters(params, u)
        shifts = shares[:, None] * score + slopes
        both = jnp.stack([shifts, shifts * offsets + shares[:, None]])
        return both.reshape(-1, *u.shape[1:])

    def _flow(
        self, params: LinearParameters, u: Float[Array, " dim *n"]
    ) -> tuple[Float[Array, " dim *n"], Float[Array, "*n"]]:
        _, shares, slopes = self._clusters(params, u)
        _, scaling = self._maps(params)
        divergence = jnp.sum(scaling, axis=1) @ shares + jnp.sum(self._moves(params, u) * slopes, axis=(0, 1))
        return self._velocity(params, u, shares), divergence

    def _maps(self, params: LinearParameters) -> Float[Array, "2 clusters dim"]:
        """b and a of every cluster."""
        return params.coefficients.reshape(2, self.num_clusters, -1)

    def _moves(self, params: LinearParameters, u: Float[Array, " dim *n"]) -> Float[Array, " clusters dim *n"]:
        """v_k = b_k + a_k * (u - m_k)."""
        shift, scaling = self._maps(params)
        return as_columns(shift - scaling * params.basis.centers, u) + as_columns(scaling, u) * u

    def _velocity(
        self, params: LinearParameters, u: Float[Array, " dim *n"], shares: Float[Array, " clusters *n"]
    ) -> Float[Array, " dim *n"]:
        """phi in the particles' units: the shares' mean of maps u -> (b_k - a_k m_k) + a_k u."""
        shift, scaling = self._maps(params)
        return (shift - scaling * params.basis.centers).T @ shares + (scaling.T @ shares) * u

    def _clusters(
        self, params: LinearParameters, u: Float[Array, " dim *n"]
    ) -> tuple[Float[Array, " clusters dim *n"], Float[Array, " clusters *n"], Float[Array, " clusters dim *n"]]:
        """u - m_k, pi_k(u) and grad pi_k(u)."""
        centers, variance = params.basis
        offsets = u - as_columns(centers, u)
        shares = jax.nn.softmax(-0.5 * jnp.sum(offsets**2, axis=1) / variance, axis=0)
        # grad ln pi_k = -(u - m_k) / h^2 + sum_l pi_l (u - m_l) / h^2 = (m_k - sum_l pi_l m_l) / h^2.
        slopes = shares[:, None] * (as_columns(centers, u) - centers.T @ shares) / variance
        return offsets, shares, slopes


def _apart(moves: Float[Array, " clusters dim *n"]) -> Float[Array, "clusters-1 dim *n"]:
    """How moves differ from the last cluster's: the slopes of the shares sum to 0, so only differences count."""
    return moves[:-1] - moves[-1]


def _squares(points: Float[Array, "n dim"], centers: Float[Array, "clusters dim"]) -> Float[Array, "n clusters"]:
    """|u - m_k|^2 up to a term that is the same for every k, and that term."""
    cross = -2 * points @ centers.T + jnp.sum(centers**2, axis=1)
    return jnp.maximum(cross + jnp.sum(points**2, axis=1, keepdims=True), 0.0)


def _products(one: Float[Array, "k dim *n"], other: Float[Array, "k dim *n"]) -> list[list[Float[Array, "*n"]]]:
    """The inner products of each two rows."""
    return [[jnp.sum(a * b, axis=0) for b in other] for a in one]
