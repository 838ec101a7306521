"""An initial law that covers what ascents have found: a mixture of the first law and a Gaussian at each maximum."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from pgps import _checks
from pgps.density import Evaluations, Problem, Structure
from pgps.initial import AbstractLaw, as_law
from pgps.scouting.maxima import Maxima, log_masses
from pgps.scouting.opinion import Scouting

# Gaussians are made so much wider than the modes, and each has at least this part of an equal share.
_WIDER = 1.2
_LEAST = 0.1


class Scouted(AbstractLaw):
    """A mixture of a law and of Gaussians. `pgps.scouted` makes it."""

    initial: AbstractLaw
    structure: Structure
    share: float
    """How much of it the Gaussians have."""
    log_weights: Float[Array, " k"]
    centers: Float[Array, "k dim"]
    roots: Float[Array, "k dim dim"]
    inverses: Float[Array, "k dim dim"]
    log_dets: Float[Array, " k"]
    evaluations: Evaluations
    """What it cost to find the maxima, summed over draws and ascents."""

    def sample(self, key: Array) -> PyTree[Float[Array, "..."]]:
        """Draw one particle."""
        key_which, key_mode, key_noise, key_initial = jax.random.split(key, 4)
        mode = jax.random.categorical(key_mode, self.log_weights)
        noise = jax.random.normal(key_noise, self.centers.shape[1:], self.centers.dtype)
        near = self.structure.unravel(self.centers[mode] + self.roots[mode] @ noise)
        scouted = jax.random.uniform(key_which) < self.share
        return jax.tree.map(lambda a, b: jnp.where(scouted, a, b), near, self.initial.sample(key_initial))

    def logdensity(self, x: PyTree[Float[Array, "..."]]) -> Scalar:
        """The normalised log-density of one particle."""
        offsets = self.structure.ravel(x) - self.centers
        z = jnp.einsum("kij,kj->ki", self.inverses, offsets)
        log_gaussians = -0.5 * jnp.sum(z**2 + jnp.log(2 * jnp.pi), axis=1) - self.log_dets
        scouted = jax.nn.logsumexp(self.log_weights + log_gaussians)
        return jnp.logaddexp(jnp.log1p(-self.share) + self.initial.logdensity(x), jnp.log(self.share) + scouted)

    @property
    def maxima(self) -> Float[Array, "k dim"]:
        """The maxima that were found, as flat vectors."""
        return self.centers[jnp.isfinite(self.log_weights)]

    @property
    def covers(self) -> bool:
        """It does, as far as anybody has looked."""
        return True

    def mean(self) -> PyTree[Float[Array, "..."]]:
        """That of the first law, about which a path shrinks and spreads."""
        return self.initial.mean()


def scouted(
    logdensity_fn: Callable[[PyTree], Scalar],
    initial: AbstractLaw | tuple[Callable, Callable],
    *,
    key: Array,
    share: float = 0.5,
    scouting: Scouting | None = None,
) -> Scouted:
    """An initial law that covers the maxima of a density which ascents from another one find.

    Half of it is the law given, so nothing that it reaches is lost; the other half is Gaussians at the maxima, by the
    mass that each would have. It costs some thousands of evaluations, which no `Result` counts, but `evaluations` does.

    Args:
        logdensity_fn: The log-density of one particle, as for `pgps.sample`.
        initial: The law to start from.
        key: A random key.
        share: How much of the new law the Gaussians have.
        scouting: How hard to look; `pgps.scouting.Scouting()` if None.
    """
    _checks.function("logdensity_fn", logdensity_fn, "(particle) -> scalar")
    _checks.between("share", share, 0, 1)
    law, scouting = as_law(initial), Scouting() if scouting is None else scouting
    problem = Problem.of(logdensity_fn, law)
    if problem.structure.dim > scouting.max_dim:
        raise ValueError(
            f"initial must draw particles of at most {scouting.max_dim} numbers to be scouted, got "
            f"{problem.structure.dim}; pass scouting=Scouting(max_dim=...) if their matrices fit"
        )
    maxima = scouting.maxima(problem, key)
    if not len(maxima.centers):
        raise ValueError(
            "logdensity_fn has no maximum that ascents from initial find; start from another law, or from this one"
        )
    return covering(problem, maxima, share)


def covering(problem: Problem, maxima: Maxima, share: float = 0.5) -> Scouted:
    """The problem's initial law, and Gaussians at these maxima, of which there must be one, with a share of it."""
    masses = log_masses(problem, maxima)
    weights = np.exp(masses - masses.max())
    weights = (1 - _LEAST) * weights / weights.sum() + _LEAST / len(weights)
    # Filled up to a power of 2 by copies without weight: a maximum more or less should not mean another program.
    which = np.arange(2 ** math.ceil(math.log2(len(weights)))) % len(weights)
    log_weights = np.where(np.arange(len(which)) < len(weights), np.log(weights)[which], -np.inf)
    roots = _WIDER * maxima.roots[which].astype(float)
    dtype = problem.structure.dtype
    return Scouted(
        problem.initial,
        problem.structure,
        share,
        jnp.asarray(log_weights, dtype),
        jnp.asarray(maxima.centers[which], dtype),
        jnp.asarray(roots, dtype),
        jnp.asarray(np.linalg.inv(roots), dtype),
        jnp.asarray(np.linalg.slogdet(roots)[1], dtype),
        Evaluations(maxima.num_values + len(weights), maxima.num_gradients),
    )
