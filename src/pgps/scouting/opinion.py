"""A second opinion on a weighted sample: the mass around maxima of the density, by direct integration.

Around a maximum c with curvature C^-1, the mass of the ellipsoid E = {x = c + C^(1/2) z : |z| < R} is integrated by
draws from the Gaussian there, and the particles have an estimate of it, too:

    integral_E p(x) dx  =  E[1(|z| < R) p(x) / N(x; c, C)]  ~  Z sum_{i in E} W_i.

Neither assumes anything of the density's shape. So if they differ by more than their errors, particles have lost a mode
or hold it with a wrong mass. That they agree proves little: there may be maxima that no ascent has found.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import gammaincinv

from pgps import _checks
from pgps.density import Evaluations, Problem
from pgps.metrics.base import normalised_weights
from pgps.metrics.moments import moments
from pgps.scouting.maxima import Maxima, Search, find_maxima, gradients_of_curvatures

# Ellipsoids hold so much of a Gaussian.
_HELD = 0.9
# An integral with a larger relative error than this has nothing to say.
_LARGEST_ERROR = 0.25
# Differences below this share of the evidence, or so many standard errors, are not worth a word.
_LEAST_SHARE = 0.1
_STANDARD_ERRORS = 4.0
# Maxima account for the evidence if so much of it is around them, by integrals that are known this well, and agree with
# the particles to within this and two standard errors.
_LEAST_AROUND = 0.75
_LARGEST_TOTAL_ERROR = 0.1
_LARGEST_GAP = 0.05
# Larger shares of the evidence are understated, lest their squares overflow.
_LARGEST_LOG_SHARE = 300.0


class Around(NamedTuple):
    """The mass around maxima, as shares of the evidence: by integration and by the particles, each with its error."""

    centers: Float[np.ndarray, "k dim"]
    integrated: Float[np.ndarray, " k"]
    integrated_errors: Float[np.ndarray, " k"]
    sampled: Float[np.ndarray, " k"]
    sampled_errors: Float[np.ndarray, " k"]
    sampled_together: float
    """What the particles have around any of them."""


class Scouting(eqx.Module):
    """Asks for a second opinion after a run, which is made again if modes are missing; all calls are counted.

    Args:
        num_draws: How many draws are looked at for places to start from, half of them from beyond the initial law.
        spread: How far beyond: by how much they are spread around its mean; half of them by up to its third power.
        num_starts: How many ascents.
        num_steps: Gradient calls of each ascent, at the most.
        most: How many maxima are looked at.
        num_integrated: Values per maximum, for its integral.
        max_dim: Beyond this dimension no opinion is asked for, since its matrices would cost more than the run.
        again: Whether a run that proves to have missed modes is made again, from a law that covers the maxima.
    """

    num_draws: int = eqx.field(static=True, default=2000)
    spread: float = eqx.field(static=True, default=3.0)
    num_starts: int = eqx.field(static=True, default=64)
    num_steps: int = eqx.field(static=True, default=40)
    most: int = eqx.field(static=True, default=32)
    num_integrated: int = eqx.field(static=True, default=400)
    max_dim: int = eqx.field(static=True, default=60)
    again: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        for name in ("num_draws", "num_starts", "num_steps", "most", "num_integrated", "max_dim"):
            _checks.whole(name, getattr(self, name), at_least=2)
        _checks.positive("spread", self.spread)

    def most_evaluations(self, dim: int) -> int:
        """What an opinion costs at most."""
        around = self.most * self.num_integrated + gradients_of_curvatures(self.most, dim)
        return self.num_draws + self.num_starts * self.num_steps + around

    def maxima(self, problem: Problem, key: Array) -> Maxima:
        """The maxima that ascents find."""
        search = Search(self.num_draws, self.num_starts, self.num_steps, self.spread, self.most)
        return find_maxima(problem, key, search, _radius(problem.structure.dim))

    def look(
        self,
        problem: Problem,
        key: Array,
        particles: Float[np.ndarray, "n dim"],
        log_weights: Float[np.ndarray, " n"],
        families: np.ndarray,
        log_evidence: float,
        log_evidence_error: float,
    ) -> tuple[Around, Maxima, Evaluations]:
        """Compare the masses around maxima.

        Args:
            problem: The density and the initial law.
            key: A random key.
            particles: The weighted sample.
            log_weights: Its log-weights.
            families: The first ancestor of each particle.
            log_evidence: The log evidence that goes with it.
            log_evidence_error: Its standard error.
        """
        key_maxima, key_draws = jax.random.split(key)
        maxima, radius = self.maxima(problem, key_maxima), _radius(problem.structure.dim)
        rows, anywhere = [], np.zeros(len(particles), bool)
        log_ratios = self._log_ratios(problem, key_draws, maxima)
        for k in range(len(maxima.centers)):
            inside = np.linalg.norm(maxima.coordinates(k, particles), axis=1) < radius
            sampled = moments(inside, log_weights, families)
            logs = log_ratios[k] - log_evidence
            shares = np.exp(logs - max(0.0, np.max(logs) - _LARGEST_LOG_SHARE))
            error = np.std(shares, ddof=1) / np.sqrt(len(shares))
            if error < _LARGEST_ERROR * np.mean(shares):
                # If particles have the mass that they should have, theirs tells what an error of the evidence is worth.
                error = np.hypot(error, sampled.mean * log_evidence_error)
                rows.append((maxima.centers[k], np.mean(shares), error, sampled.mean, sampled.mean_error))
                anywhere |= inside
        evaluations = Evaluations(maxima.num_values + len(maxima.centers) * self.num_integrated, maxima.num_gradients)
        columns = [np.asarray(column) for column in zip(*rows, strict=True)] if rows else [np.zeros(0)] * 5
        together = float(normalised_weights(log_weights, len(particles)) @ anywhere)
        return Around(*columns, sampled_together=together), maxima, evaluations

    def _log_ratios(self, problem: Problem, key: Array, maxima: Maxima) -> Float[np.ndarray, "k num"]:
        """ln p / N at draws around each maximum; one program, filled up by rows that it does not look at."""
        count = len(maxima.centers)
        if count == 0:
            return np.zeros((0, self.num_integrated))
        rows = np.arange(self.most) % count
        centers, roots = (jnp.asarray(array[rows]) for array in (maxima.centers, maxima.roots))
        ratios = _ratios(problem, key, jnp.asarray(count), centers, roots, self.num_integrated)
        return np.asarray(ratios, float)[:count]


def differences(around: Around) -> list[str]:
    """What the two opinions differ on, if they do, in words."""
    gaps = around.integrated - around.sampled
    errors = np.hypot(around.integrated_errors, around.sampled_errors)
    clear = np.abs(gaps) > np.maximum(_LEAST_SHARE, _STANDARD_ERRORS * errors)
    if not np.any(clear):
        return []
    worst = int(np.argmax(np.where(clear, np.abs(gaps), 0.0)))
    place = ", ".join(f"{value:.3g}" for value in around.centers[worst][:3])
    more = ", ..." if around.centers.shape[1] > 3 else ""
    integrated, sampled = around.integrated[worst], around.sampled[worst]
    return [
        f"around {np.count_nonzero(clear)} of {len(clear)} maxima of the density, such as ({place}{more}), it "
        f"integrates to {integrated:.2g} of the evidence while particles there have {sampled:.2g}, so modes are "
        "missing or have wrong masses; start from pgps.scouted(logdensity_fn, initial, key=key) (--scouted)"
    ]


def accounts_for_evidence(around: Around) -> bool:
    """Whether both opinions find nearly all of the evidence around maxima, and as much of it."""
    gap = float(np.sum(around.integrated - around.sampled))
    error = float(np.linalg.norm([around.integrated_errors, around.sampled_errors]))
    agree = error < _LARGEST_TOTAL_ERROR and abs(gap) < _LARGEST_GAP + 2 * error
    return agree and around.sampled_together > _LEAST_AROUND


def _radius(dim: int) -> float:
    """The square root of the quantile of the chi-squared law; scipy.stats has it, but takes a second to import."""
    return float(np.sqrt(2 * gammaincinv(dim / 2, _HELD)))


@eqx.filter_jit
def _ratios(
    problem: Problem,
    key: Array,
    count: Int[Array, ""],
    centers: Float[Array, "k dim"],
    roots: Float[Array, "k dim dim"],
    num: int,
) -> Float[Array, "k num"]:
    """ln p / N at draws from the Gaussian around each of the first `count` maxima, -inf outside the ellipsoid."""
    dim = centers.shape[1]

    def add(k: Int[Array, ""], ratios: Float[Array, "k num"]) -> Float[Array, "k num"]:
        z = jax.random.normal(jax.random.fold_in(key, k), (num, dim), centers.dtype)
        log_gaussian = -0.5 * jnp.sum(z**2 + jnp.log(2 * jnp.pi), axis=1) - jnp.linalg.slogdet(roots[k])[1]
        values = problem.spread.map(problem.log_target, centers[k] + z @ roots[k].T)
        inside = jnp.linalg.norm(z, axis=1) < _radius(dim)
        return ratios.at[k].set(jnp.where(inside & ~jnp.isnan(values), values - log_gaussian, -jnp.inf))

    return jax.lax.fori_loop(0, count, add, jnp.zeros((len(centers), num), centers.dtype))
