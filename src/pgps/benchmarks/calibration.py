"""`pgps bench calibration`: simulation-based calibration (Talts et al. 2018), and the coverage of the log evidence.

In each replication theta comes from the prior and data from the likelihood, and the posterior is sampled:

    theta ~ N(0, I),      y = X theta + sigma e,      e ~ N(0, I).

If the sampler is right, the rank of theta_d among draws of the posterior is uniform: chi-square tells how likely ranks
as uneven as these would be. The evidence is known, y ~ N(0, X X^T + sigma^2 I), so that one can count how often it lies
within two standard errors of the estimate. All replications run in one compiled program.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar
from scipy import stats

from pgps import recipes, storage
from pgps.benchmarks.timing import environment, write
from pgps.initial import Normal
from pgps.methods import AbstractMethod, TemperedSMC
from pgps.result import PGPSWarning, Result
from pgps.sample import sample_many

_DIM = 3
_NOISE = 0.7
# Rows of X; correlated columns, so that no coordinate can be inferred for itself.
_DESIGN = np.array([[1.0, 0.5, 0.0], [0.2, 1.0, -0.6], [0.0, 0.7, 1.0], [1.0, 1.0, 1.0], [-0.5, 0.3, 0.8]])
_NUM_ERRORS = 2.0


class Preset(NamedTuple):
    """How much is done.

    Attributes:
        method: The sampler's name, among `METHODS`.
        replications: How many theta are drawn.
        num_particles: Particles of each run.
        draws: Draws that theta is ranked among; ranks go from 0 to this number.
        bins: Bins of the ranks, of equal size.
    """

    method: str
    replications: int
    num_particles: int
    draws: int
    bins: int


PRESETS = {"full": Preset("exact", 200, 500, 31, 8), "smoke": Preset("smc", 16, 64, 7, 4)}
METHODS: dict[str, Callable[[], AbstractMethod]] = {"exact": recipes.exact, "smc": TemperedSMC}


class Posterior(eqx.Module):
    """The joint log-density of theta and the data y, as a function of theta."""

    data: Float[Array, " n"]

    def __call__(self, theta: Float[Array, " dim"]) -> Scalar:
        """ln p(theta) + ln p(y | theta), normalised."""
        normal = jax.scipy.stats.norm.logpdf
        return jnp.sum(normal(theta)) + jnp.sum(normal(self.data, jnp.asarray(_DESIGN) @ theta, _NOISE))

    def log_evidence(self) -> float:
        """ln p(y), in closed form."""
        covariance = _DESIGN @ _DESIGN.T + _NOISE**2 * np.eye(len(_DESIGN))
        y = np.asarray(self.data, float)
        log_det = np.linalg.slogdet(2 * math.pi * covariance)[1]
        return float(-0.5 * (y @ np.linalg.solve(covariance, y) + log_det))


def run(out: Path | None, quiet: bool, preset: Preset = PRESETS["full"], seed: int = 0) -> dict[str, Any]:
    """Draw, sample, rank and count, and write `result.json` into the folder `out` if one is given."""
    if out is not None:
        storage.check_free(out)
    if not quiet:
        print(f"{preset.replications} runs of {preset.method} with {preset.num_particles} particles", flush=True)
    thetas, posteriors = simulate(preset.replications, np.random.default_rng(seed))
    keys = jax.random.split(jax.random.key(seed), preset.replications)
    with warnings.catch_warnings(action="ignore", category=PGPSWarning):
        results = sample_many(
            posteriors,
            Normal(0.0, 1.0, shape=(_DIM,)),
            keys=keys,
            num_particles=preset.num_particles,
            method=METHODS[preset.method](),
            progress=False if quiet else None,
        )
    ranks = []
    for result, key, theta in zip(results, keys, thetas, strict=True):
        drawn = np.asarray(result.resample(jax.random.fold_in(key, 1), preset.draws))
        ranks.append(np.sum(drawn < theta, axis=0))
    record = {
        "command": "pgps bench calibration",
        "ranks": [uniformity(column, preset.draws, preset.bins) for column in np.stack(ranks).T],
        "evidence": coverage(results, posteriors),
        "warned": sum(bool(result.warnings) for result in results),
        "seconds": sum(result.provenance["seconds"] for result in results),
        "seed": seed,
        "preset": preset._asdict(),
        **environment(),
    }
    if out is not None:
        write(out, record)
    return record


def simulate(replications: int, rng: np.random.Generator) -> tuple[Float[np.ndarray, "n dim"], list[Posterior]]:
    """Parameters from the prior, and the posterior of the data that each of them gives."""
    thetas = rng.standard_normal((replications, _DIM))
    noise = _NOISE * rng.standard_normal((replications, len(_DESIGN)))
    return thetas, [Posterior(jnp.asarray(y, jnp.result_type(float))) for y in thetas @ _DESIGN.T + noise]


def uniformity(ranks: np.ndarray, draws: int, bins: int) -> dict[str, Any]:
    """Counts of ranks in bins of equal size, and the chi-square test that they are uniform."""
    if (draws + 1) % bins:
        raise ValueError(f"bins must divide draws + 1 = {draws + 1}, got {bins}; ranks would not be uniform over them")
    counts = np.bincount(ranks * bins // (draws + 1), minlength=bins)
    test = stats.chisquare(counts)
    return {"counts": counts.tolist(), "chi_square": float(test.statistic), "p_value": float(test.pvalue)}


def coverage(results: Sequence[Result], posteriors: Sequence[Posterior]) -> dict[str, float]:
    """How often the evidence lies within two standard errors, and the errors in units of the standard error."""
    truths = np.array([posterior.log_evidence() for posterior in posteriors])
    found = np.array([(result.log_evidence, result.log_evidence_error) for result in results], float)
    errors, standard = found[:, 0] - truths, found[:, 1]
    share = float(np.mean(np.abs(errors) <= _NUM_ERRORS * standard))
    return {
        "covered": share,
        # Of the nominal share: that of what was counted is 0 where all are covered.
        "nominal": (nominal := float(2 * stats.norm.cdf(_NUM_ERRORS) - 1)),
        "binomial_error": math.sqrt(nominal * (1 - nominal) / len(errors)),
        "mean_error": float(np.mean(errors)),
        "mean_error_error": float(np.std(errors, ddof=1) / math.sqrt(len(errors))),
        "sd_error": float(np.std(errors, ddof=1)),
        "mean_reported_error": float(np.mean(standard)),
    }


def format_table(record: dict[str, Any]) -> str:
    """The record as text."""
    lines = [
        f"theta_{d}: ranks {' '.join(map(str, row['counts']))}, chi-square {row['chi_square']:.1f}, "
        f"p = {row['p_value']:.3f}"
        for d, row in enumerate(record["ranks"])
    ]
    row = record["evidence"]
    lines.append(
        f"log evidence within two errors: {row['covered']:.1%} (nominal {row['nominal']:.1%} +- "
        f"{row['binomial_error']:.1%}); mean error {row['mean_error']:+.4f} +- {row['mean_error_error']:.4f}, "
        f"sd {row['sd_error']:.4f}, reported {row['mean_reported_error']:.4f}"
    )
    return "\n".join(lines)
