"""Weighted means and standard deviations, with standard errors that know which particles are relatives.

    m = sum_i W_i f_i,    error(m) = sqrt(sum_e (sum_{i in e} W_i (f_i - m))^2)

over families e of particles with one first ancestor; without ancestors, each particle is a family. The error of the
standard deviation s is that of the mean of (f - m)^2, divided by 2 s.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pgps.metrics.base import AnyArray, families_of, finite_array, normalised_weights


class Moments(NamedTuple):
    """Means and standard deviations over particles, each with its standard error.

    Attributes:
        mean: The weighted means.
        mean_error: Their standard errors.
        sd: The weighted standard deviations.
        sd_error: Their standard errors; 0 where all values are the same.
    """

    mean: Float[np.ndarray, "..."]
    mean_error: Float[np.ndarray, "..."]
    sd: Float[np.ndarray, "..."]
    sd_error: Float[np.ndarray, "..."]


def moments(
    values: Float[AnyArray, "n ..."] | Bool[AnyArray, "n ..."],
    log_weights: Float[AnyArray, " n"] | None = None,
    ancestors: Int[AnyArray, " n"] | None = None,
) -> Moments:
    """The mean and the standard deviation of anything that has one value, or array of values, per particle.

    The mean of a truth value, as in `particles > 0`, is a probability.

    Args:
        values: The values, with a leading axis over particles.
        log_weights: The particles' log-weights.
        ancestors: The index of each particle's first ancestor, as in `Result.families`.
    """
    f = finite_array("values", values, max(np.ndim(values), 1))
    weights = normalised_weights(log_weights, len(f))
    families = families_of(ancestors, len(f))
    columns = f.reshape(len(f), -1)
    mean, mean_error = _mean(columns, weights, families)
    variance, variance_error = _mean((columns - mean) ** 2, weights, families)
    sd = np.sqrt(variance)
    sd_error = np.divide(variance_error, 2 * sd, out=np.zeros_like(sd), where=sd > 0)
    return Moments(*(x.reshape(f.shape[1:]) for x in (mean, mean_error, sd, sd_error)))


def _mean(columns: np.ndarray, weights: np.ndarray, families: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = weights @ columns
    deviations = np.zeros((families.max() + 1, columns.shape[1]))
    np.add.at(deviations, families, weights[:, None] * (columns - mean))
    return mean, np.linalg.norm(deviations, axis=0)
