"""The interface of a vector field phi_t^theta(x).

A field is two methods: `init` makes its parameters, `apply` evaluates it at one particle. The divergence and the
log-determinant of x -> x + dt phi(x) default to the exact Jacobian; a member that knows closed forms replaces
`apply_and_divergence` and `log_det`, and the contract test holds it to the values of the defaults.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from pgps.density import Population
from pgps.noise import split


class AbstractField(eqx.Module):
    """A parametrised vector field. It holds hyperparameters only: the parameters theta are an argument."""

    @abc.abstractmethod
    def init(self, key: Array, dim: int, dtype: Any) -> PyTree:
        """Fresh parameters for particles with `dim` coordinates."""

    @abc.abstractmethod
    def apply(self, params: PyTree, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi_t(x) for one particle."""

    def observe(self, params: PyTree, population: Population) -> PyTree:
        """Let the field look at the population before it is fitted to it (units, centres); some have no need."""
        return params

    def apply_and_divergence(
        self, params: PyTree, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi_t(x) and div phi_t(x) together; `key` is for fields that estimate the divergence."""
        jacobian, velocity = jax.jacfwd(lambda x: 2 * (self.apply(params, t, x),), has_aux=True)(x)
        return velocity, jnp.trace(jacobian)

    def divergence(self, params: PyTree, t: Scalar, x: Float[Array, " dim"], key: Array | None = None) -> Scalar:
        """Div phi_t(x) for one particle; a field that estimates it needs a key."""
        return self.apply_and_divergence(params, t, x, jax.random.key(0) if key is None else key)[1]

    def log_det(self, params: PyTree, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt grad phi_t(x))|, exact."""
        jacobian = jax.jacfwd(lambda x: self.apply(params, t, x))(x)
        return jnp.linalg.slogdet(jnp.eye(x.size, dtype=x.dtype) + dt * jacobian)[1]

    def stretch(self, params: PyTree, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """A bound on the norm of grad phi_t(x): x -> x + dt phi(x) does not fold where dt times it is below 1."""
        return norm_bound(jax.jacfwd(lambda x: self.apply(params, t, x))(x))

    # The same at many particles. A member replaces them if it knows a faster way than particle by particle.

    def flows(
        self, params: PyTree, t: Scalar, particles: Float[Array, "n dim"], key: Array
    ) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
        """phi_t(x) and its divergence."""
        keys = split(key, len(particles))
        return jax.vmap(lambda x, key: self.apply_and_divergence(params, t, x, key))(particles, keys)

    def log_dets(self, params: PyTree, t: Scalar, particles: Float[Array, "n dim"], dt: Scalar) -> Float[Array, " n"]:
        """ln |det(I + dt grad phi_t(x))|."""
        return jax.vmap(lambda x: self.log_det(params, t, x, dt))(particles)

    def stretches(self, params: PyTree, t: Scalar, particles: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """A bound on the norm of grad phi_t(x)."""
        return jax.vmap(lambda x: self.stretch(params, t, x))(particles)


def norm_bound(matrix: Float[Array, " dim dim *n"]) -> Float[Array, "*n"]:
    """A bound on a matrix's spectral norm, or many's: the geometric mean of its largest row and column sums."""
    sizes = jnp.abs(matrix)
    sums = (jnp.max(jnp.sum(sizes, axis=side), axis=0, initial=0.0) for side in (0, 1))
    return jnp.sqrt(math.prod(sums))
