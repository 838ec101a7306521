"""Particles' weights along a run, the log evidence that they sum to, and its standard error.

Particles may live on islands: sets of equal size that are weighed and resampled each for itself, and whose estimates of
the evidence are averaged.

The error comes from the genealogy (Chan and Lai 2013). With S_e the sum of the normalised weights of all descendants
of the e-th of an island's n particles at t = 0,

    var(Z) / Z^2  ~  sum_e (S_e - 1/n)^2.

Without resampling that is the usual variance of an importance sampling estimate. With it, the rounding of resampling
counts too, so that the error errs on the side of caution; it grows towards 1 as fewer and fewer of the first particles
have descendants left.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps.noise import split
from pgps.weights.resampling import Scheme, systematic

# A log-weight that is rounded by more than this is far below anything that counts, and the weight is 0.
_LARGEST_ROUNDING = 1e-3


def effective_sample_size(log_weights: Float[Array, " n"]) -> Scalar:
    """(sum_i w_i)^2 / sum_i w_i^2, which rounding does not lift above their number."""
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    return jnp.minimum(jnp.sum(weights) ** 2 / jnp.sum(weights**2), len(log_weights))


class Weights(eqx.Module):
    """Log-weights, the log evidence so far, and each particle's first ancestor."""

    on_islands: Float[Array, "islands n"]
    """The log-weights of each island, normalised there."""
    log_evidences: Float[Array, " islands"]
    """The log evidence as each island has it."""
    ancestors: Int[Array, "islands n"]

    @classmethod
    def equal(cls, num_particles: int, dtype: jnp.dtype, islands: int = 1) -> "Weights":
        """Equal weights, before anything has happened."""
        each = num_particles // islands
        log_weights = jnp.full((islands, each), -jnp.log(each), dtype)
        ancestors = jnp.tile(jnp.arange(each), (islands, 1))
        return cls(log_weights, jnp.zeros(islands, dtype), ancestors)

    def reweighted(self, increments: Float[Array, " N"]) -> "Weights":
        """After log-weight increments; their weighted mean is a factor of an island's evidence."""
        # A weight of 0 stays 0, whatever its increment.
        increments = increments.reshape(self.on_islands.shape)
        log_weights = jnp.where(self.on_islands == -jnp.inf, -jnp.inf, self.on_islands + increments)
        totals = jax.nn.logsumexp(log_weights, axis=1)
        # An island without any weight left has no evidence, and its particles stay without weight.
        normalised = log_weights - jnp.where(totals == -jnp.inf, 0.0, totals)[:, None]
        # Log-densities of -1e30 round by more than all others are worth: added up and taken back they leave a remainder
        # that would be the largest weight of all.
        known = normalised > -_LARGEST_ROUNDING / jnp.finfo(normalised.dtype).eps
        return Weights(jnp.where(known, normalised, -jnp.inf), self.log_evidences + totals, self.ancestors)

    def resampled(
        self, key: Array, below: Scalar | float, scheme: Scheme = systematic
    ) -> tuple["Weights", Int[Array, " N"]]:
        """Equal weights on each island whose effective share has fallen below this; also the chosen particles.

        On the others, particles without weight take the places of particles that have some. They may be anywhere, and
        where the density has no mass they would spoil what moves learn from all particles.
        """
        islands, each = self.on_islands.shape
        needed, lost = self.effective_shares < below, self.on_islands == -jnp.inf
        keys = split(key, islands)
        # An island that needs none is left out of the work, too.
        chosen = jax.lax.map(
            lambda island: jax.lax.cond(island[0], scheme, lambda *_: jnp.arange(each), *island[1:]),
            (needed | (jnp.any(lost, axis=1) & ~jnp.all(lost, axis=1)), keys, self.on_islands),
        )
        chosen = jnp.where(needed[:, None] | lost, chosen, jnp.arange(each))
        log_weights = jnp.where(needed[:, None], -jnp.log(each).astype(self.on_islands.dtype), self.on_islands)
        ancestors = jnp.take_along_axis(self.ancestors, chosen, axis=1)
        indices = chosen + each * jnp.arange(islands)[:, None]
        return Weights(log_weights, self.log_evidences, ancestors), indices.reshape(-1)

    @property
    def log_weights(self) -> Float[Array, " N"]:
        """Normalised log-weights of all particles; an island counts by its evidence."""
        return (self.on_islands + jnp.log(self._island_shares)[:, None]).reshape(-1)

    @property
    def log_evidence(self) -> Scalar:
        """The log of the islands' mean evidence."""
        return jax.nn.logsumexp(self.log_evidences) - jnp.log(len(self.log_evidences))

    @property
    def log_evidence_error(self) -> Scalar:
        """The standard error of the log evidence: by the genealogy, or by the islands' spread if that is larger."""
        shares, islands = self._island_shares, len(self.log_evidences)
        by_families = shares**2 @ self._family_variances
        gaps = jnp.where(shares > 0, self.log_evidences - self.log_evidence, 0.0)
        by_islands = shares @ gaps**2 / max(islands - 1, 1)
        return jnp.sqrt(jnp.maximum(by_families, by_islands))

    @property
    def disagreement(self) -> Scalar:
        """By how many standard errors the islands' log evidences are apart, at most."""
        gap = jnp.max(self.log_evidences) - jnp.min(self.log_evidences)
        return gap / jnp.sqrt(jnp.maximum(jnp.sum(self._family_variances), jnp.finfo(gap.dtype).eps))

    @property
    def ess(self) -> Scalar:
        """The effective sample size of all particles."""
        return effective_sample_size(self.log_weights)

    @property
    def effective_shares(self) -> Float[Array, " islands"]:
        """The effective sample size of each island, as a share of its particles."""
        return jax.vmap(effective_sample_size)(self.on_islands) / self.on_islands.shape[1]

    @property
    def families(self) -> Int[Array, " N"]:
        """The family of each particle: those that descend from the same first one have the same number."""
        islands, each = self.ancestors.shape
        return (self.ancestors + each * jnp.arange(islands)[:, None]).reshape(-1)

    @property
    def num_ancestors(self) -> Int[Array, ""]:
        """How many of the first particles have descendants left."""
        return jnp.sum(self._family_shares > 0)

    @property
    def _family_shares(self) -> Float[Array, "islands n"]:
        each = self.ancestors.shape[1]
        return jax.vmap(lambda log_weights, family: jax.ops.segment_sum(jnp.exp(log_weights), family, each))(
            self.on_islands, self.ancestors
        )

    @property
    def _family_variances(self) -> Float[Array, " islands"]:
        """The relative variance of each island's evidence, by its genealogy."""
        return jnp.sum((self._family_shares - 1 / self.ancestors.shape[1]) ** 2, axis=1)

    @property
    def _island_shares(self) -> Float[Array, " islands"]:
        return jax.nn.softmax(self.log_evidences)
