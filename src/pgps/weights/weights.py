"""Particles' weights along a run, the log evidence that they sum to, and its standard error.

The error comes from the genealogy (Chan and Lai 2013). With S_e the sum of the normalised weights of all descendants
of the e-th particle at t = 0,

    var(Z) / Z^2  ~  sum_e (S_e - 1/N)^2.

Without resampling that is the usual variance of an importance sampling estimate. With it, the rounding of resampling
counts too, so that the error errs on the side of caution; it grows towards 1 as fewer and fewer of the first particles
have descendants left.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from pgps.weights.resampling import systematic


def effective_sample_size(log_weights: Float[Array, " n"]) -> Scalar:
    """(sum_i w_i)^2 / sum_i w_i^2."""
    return jnp.exp(2 * jax.nn.logsumexp(log_weights) - jax.nn.logsumexp(2 * log_weights))


class Weights(eqx.Module):
    """Normalised log-weights, the log evidence so far, and each particle's first ancestor."""

    log_weights: Float[Array, " n"]
    log_evidence: Scalar
    ancestors: Int[Array, " n"]

    @classmethod
    def equal(cls, num_particles: int, dtype: jnp.dtype) -> "Weights":
        """Equal weights, before anything has happened."""
        log_weights = jnp.full(num_particles, -jnp.log(num_particles), dtype)
        return cls(log_weights, jnp.zeros((), dtype), jnp.arange(num_particles))

    def reweighted(self, increments: Float[Array, " n"]) -> "Weights":
        """After log-weight increments; their weighted mean is a factor of the evidence."""
        # A weight of 0 stays 0, whatever its increment.
        log_weights = jnp.where(self.log_weights == -jnp.inf, -jnp.inf, self.log_weights + increments)
        total = jax.nn.logsumexp(log_weights)
        return eqx.tree_at(
            lambda weights: (weights.log_weights, weights.log_evidence),
            self,
            (log_weights - total, self.log_evidence + total),
        )

    def resampled(self, key: Array, needed: Bool[Array, ""]) -> tuple["Weights", Int[Array, " n"]]:
        """Equal weights and the indices of the particles to go on with; as they are if there is no need."""
        num = len(self.ancestors)
        indices = jnp.where(needed, systematic(key, self.log_weights), jnp.arange(num))
        log_weights = jnp.where(needed, -jnp.log(num).astype(self.log_weights.dtype), self.log_weights)
        return Weights(log_weights, self.log_evidence, self.ancestors[indices]), indices

    @property
    def ess(self) -> Scalar:
        """The effective sample size."""
        return effective_sample_size(self.log_weights)

    @property
    def num_ancestors(self) -> Int[Array, ""]:
        """How many of the first particles have descendants left."""
        return jnp.sum(self._family_shares > 0)

    @property
    def log_evidence_error(self) -> Scalar:
        """The standard error of the log evidence."""
        return jnp.sqrt(jnp.sum((self._family_shares - 1 / len(self.ancestors)) ** 2))

    @property
    def _family_shares(self) -> Float[Array, " n"]:
        return jax.ops.segment_sum(jnp.exp(self.log_weights), self.ancestors, len(self.ancestors))
