"""The Stein-kernel field: ridge regression in the space of fields that a kernel spans, with M particles as centres.

With centres y_j, their scores s_j and a kernel k,

    psi_j(u) = k(u, y_j) s_j + grad_y k(u, y_j),

which is how particle j pushes the others in SVGD. Then g_j(u) is the Stein kernel k_0(u, y_j). The kernel is the
inverse multiquadric k = (1 + |u - y|^2 / h^2)^(-1/2), whose slow decay suits heavy tails; h^2 is a multiple of the mean
squared distance of two particles. The Jacobian, D x D for each particle, is meant for some dozens of coordinates.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import norm_bound
from pgps.fields.linear import AbstractLinearField, LinearParameters, Units


class Centers(NamedTuple):
    """Places y_j, scores s_j and the squared bandwidth h^2, in the particles' units."""

    places: Float[Array, "centers dim"]
    scores: Float[Array, "centers dim"]
    bandwidth: Scalar


class Kernel(AbstractLinearField):
    """Stein-kernel ridge regression.

    Args:
        num_centers: Particles that serve as centres, M; fewer if there are fewer.
        bandwidth: h as a multiple of the root mean squared distance of two particles.
    """

    num_centers: int = eqx.field(static=True, default=100)
    bandwidth: float = 0.7

    def __check_init__(self):
        _checks.whole("num_centers", self.num_centers, at_least=1)
        _checks.positive("bandwidth", self.bandwidth)

    def init(self, key: Array, dim: int, dtype: Any) -> LinearParameters:
        """No movement; all centres at the origin."""
        zeros = jnp.zeros((self.num_centers, dim), dtype)
        basis = Centers(zeros, zeros, jnp.ones((), dtype))
        return LinearParameters(jnp.zeros(self.num_centers, dtype), Units.standard(dim, dtype), basis)

    def observe(self, params: LinearParameters, population: Population) -> LinearParameters:
        """Choose the centres among the particles, evenly over their order."""
        units = Units.of(population.particles)
        chosen = jnp.linspace(0, len(population.particles) - 1, self.num_centers).astype(int)
        places = units.enter(population.particles[chosen])
        # Two independent particles of unit variance are 2 dim apart, squared.
        bandwidth = 2 * places.shape[1] * jnp.asarray(self.bandwidth, places.dtype) ** 2
        scores = units.turn(population.score[chosen])
        return params._replace(units=units, basis=Centers(places, scores, bandwidth))

    def features(
        self, params: LinearParameters, x: Float[Array, " dim"], score: Float[Array, " dim"]
    ) -> Float[Array, " features"]:
        """The Stein kernel between x and each centre."""
        offsets, k, k1, k2 = self._kernel(params, x)
        s, scores = params.units.turn(score), params.basis.scores
        pull = jnp.sum(offsets * scores, axis=1) - offsets @ s
        return k * (scores @ s) + k1 * pull - (k1 * x.size + k2 * jnp.sum(offsets**2, axis=1))

    def apply(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x)."""
        offsets, k, k1, _ = self._kernel(params, x)
        c = params.coefficients
        return params.units.leave((c * k) @ params.basis.scores - (c * k1) @ offsets)

    def apply_and_divergence(
        self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and its divergence."""
        offsets, k, k1, k2 = self._kernel(params, x)
        c, scores = params.coefficients, params.basis.scores
        velocity = (c * k) @ scores - (c * k1) @ offsets
        pull = k1 * jnp.sum(offsets * scores, axis=1)
        return params.units.leave(velocity), c @ (pull - k1 * x.size - k2 * jnp.sum(offsets**2, axis=1))

    def log_det(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt grad phi)|."""
        return jnp.linalg.slogdet(jnp.eye(x.size, dtype=x.dtype) + dt * self._jacobian(params, x))[1]

    def stretch(self, params: LinearParameters, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """A bound on the Jacobian's norm."""
        return norm_bound(self._jacobian(params, x))

    def _jacobian(self, params: LinearParameters, x: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
        """sum_j c_j (s_j (grad_x k)^T + grad_x grad_y k)."""
        offsets, _, k1, k2 = self._kernel(params, x)
        c = params.coefficients[:, None]
        spread = jnp.sum(params.coefficients * k1) * jnp.eye(x.size, dtype=x.dtype)
        return (c * k1[:, None] * params.basis.scores - c * k2[:, None] * offsets).T @ offsets - spread

    def _kernel(
        self, params: LinearParameters, x: Float[Array, " dim"]
    ) -> tuple[Float[Array, "centers dim"], Float[Array, " c"], Float[Array, " c"], Float[Array, " c"]]:
        """u - y_j, k, and k1, k2 with grad_x k = k1 (u - y), grad_x k1 = k2 (u - y)."""
        offsets = params.units.enter(x) - params.basis.places
        h2 = params.basis.bandwidth
        base = 1 + jnp.sum(offsets**2, axis=1) / h2
        return offsets, base**-0.5, -(base**-1.5) / h2, 3 * base**-2.5 / h2**2
