"""How far predicted class probabilities can be trusted: accuracy, proper scores, calibration errors, disagreement.

With p_ic the probability of class c for row i, y_i its label, and bins B of equal width over [0, 1],

    ECE            = sum_B |B| / n |accuracy(B) - mean confidence(B)|,    of the likeliest class of each row,
    class-wise ECE = mean over classes c of mean over non-empty B of |frequency of c in B - mean p_c in B|,

the second without weights for the bins, as in the paper's released code. For networks j of weight W_j,

    H[sum_j W_j p_j] = sum_j W_j H[p_j] + disagreement,

where the disagreement is the mutual information of the label and the network.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pgps import _checks
from pgps.metrics.base import AnyArray, finite_array, normalised_weights


class Reliability(NamedTuple):
    """Confidence beside accuracy, bin by bin; a bin (a, b] is closed above, the first one also below.

    Attributes:
        edges: The bins' edges.
        confidence: The mean probability of the likeliest class; nan in an empty bin.
        accuracy: The share of right rows; nan in an empty bin.
        counts: The number of rows.
    """

    edges: Float[np.ndarray, " bins_and_one"]
    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]
    counts: Int[np.ndarray, " bins"]


def accuracy(probabilities: Float[AnyArray, "n classes"], labels: Int[AnyArray, " n"]) -> float:
    """The share of rows whose likeliest class, the first of equals, is the label."""
    p, y = _predictions(probabilities, labels)
    return float(np.mean(np.argmax(p, axis=1) == y))


def negative_log_likelihood(probabilities: Float[AnyArray, "n classes"], labels: Int[AnyArray, " n"]) -> float:
    """The mean of -ln p of the label, in nats; inf if a label had probability 0."""
    p, y = _predictions(probabilities, labels)
    with np.errstate(divide="ignore"):
        return float(-np.mean(np.log(p[np.arange(len(y)), y])))


def brier_score(probabilities: Float[AnyArray, "n classes"], labels: Int[AnyArray, " n"]) -> float:
    """The mean over rows of sum_c (p_c - 1[c = y])^2, between 0 and 2."""
    p, y = _predictions(probabilities, labels)
    return float(np.mean(np.sum((p - np.eye(p.shape[1])[y]) ** 2, axis=1)))


def reliability(
    probabilities: Float[AnyArray, "n classes"], labels: Int[AnyArray, " n"], num_bins: int = 10
) -> Reliability:
    """The table behind a reliability diagram, for the likeliest class of each row."""
    p, y = _predictions(probabilities, labels)
    return _reliability(p.max(axis=1), np.argmax(p, axis=1) == y, num_bins)


def calibration_error(
    probabilities: Float[AnyArray, "n classes"], labels: Int[AnyArray, " n"], num_bins: int = 10
) -> float:
    """The usual ECE: of the likeliest class, bins weighted by their counts."""
    table = reliability(probabilities, labels, num_bins)
    used = table.counts > 0
    gaps = np.abs(table.accuracy[used] - table.confidence[used])
    return float(gaps @ table.counts[used] / table.counts.sum())


def classwise_calibration_error(
    probabilities: Float[AnyArray, "n classes"], labels: Int[AnyArray, " n"], num_bins: int = 10
) -> float:
    """The paper's ECE: over all classes and their non-empty bins alike. Classes without rows count."""
    p, y = _predictions(probabilities, labels)
    tables = [_reliability(p[:, c], y == c, num_bins) for c in range(p.shape[1])]
    return float(np.mean([np.nanmean(np.abs(table.accuracy - table.confidence)) for table in tables]))


def predictive_entropy(
    probabilities: Float[AnyArray, "particles n classes"], log_weights: Float[AnyArray, " particles"] | None = None
) -> Float[np.ndarray, " n"]:
    """The entropy of the weighted mean prediction of each row, in nats.

    Args:
        probabilities: The prediction of each network (particle) for each row.
        log_weights: The particles' log-weights.
    """
    p, weights = _networks(probabilities, log_weights)
    return _entropy(np.tensordot(weights, p, axes=1))


def disagreement(
    probabilities: Float[AnyArray, "particles n classes"], log_weights: Float[AnyArray, " particles"] | None = None
) -> Float[np.ndarray, " n"]:
    """The part of `predictive_entropy` that comes from networks that differ, in nats: 0 if all agree.

    Args:
        probabilities: The prediction of each network (particle) for each row.
        log_weights: The particles' log-weights.
    """
    p, weights = _networks(probabilities, log_weights)
    # Not negative but for rounding (Jensen).
    return np.maximum(_entropy(np.tensordot(weights, p, axes=1)) - weights @ _entropy(p), 0.0)


def _entropy(p: np.ndarray) -> np.ndarray:
    return -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)


def _reliability(confidence: np.ndarray, right: np.ndarray, num_bins: int) -> Reliability:
    _checks.whole("num_bins", num_bins, at_least=1)
    edges = np.linspace(0, 1, num_bins + 1)
    bins = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(bins, minlength=num_bins)
    sums = [np.bincount(bins, values, num_bins) for values in (confidence, right)]
    mean_confidence, share = (np.divide(s, counts, out=np.full(num_bins, np.nan), where=counts > 0) for s in sums)
    return Reliability(edges, mean_confidence, share, counts)


def _distributions(probabilities: Any, ndim: int) -> np.ndarray:
    """Probabilities that sum to 1 over the last axis, in double precision."""
    p = finite_array("probabilities", probabilities, ndim)
    if np.any((p < 0) | (p > 1 + 1e-4)):
        wrong = p[(p < 0) | (p > 1 + 1e-4)][0]
        raise ValueError(f"probabilities must lie in [0, 1], got {wrong:g}; pass them after the softmax")
    sums = p.sum(axis=-1, keepdims=True)
    wrong = sums[np.abs(sums - 1) > 1e-4]
    if wrong.size:
        got = f"{wrong[0]:g} in {wrong.size} of {sums.size} rows"
        raise ValueError(f"probabilities must sum to 1 over classes, got {got}; divide each row by its sum")
    return p / sums  # single precision leaves a remainder


def _predictions(probabilities: Any, labels: Any) -> tuple[Float[np.ndarray, "n classes"], Int[np.ndarray, " n"]]:
    p, y = _distributions(probabilities, 2), np.asarray(labels)
    if y.shape != (len(p),) or not np.issubdtype(y.dtype, np.integer):
        got = f"shape {y.shape} and dtype {y.dtype}"
        raise ValueError(f"labels must be {len(p)} whole numbers, got {got}; pass one class index per row")
    wrong = y[(y < 0) | (y >= p.shape[1])]
    if wrong.size:
        raise ValueError(f"labels must lie in 0, ..., {p.shape[1] - 1}, got {wrong[0]}; count classes from 0")
    return p, y


def _networks(
    probabilities: Any, log_weights: Any
) -> tuple[Float[np.ndarray, "particles n classes"], Float[np.ndarray, " particles"]]:
    p = _distributions(probabilities, 3)
    return p, normalised_weights(log_weights, len(p))
