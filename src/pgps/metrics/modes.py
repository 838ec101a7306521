"""Shares of modes: the paper's score 1 (section 5.1.1), score 2 (5.1.2) and weight mismatch e, and a table of modes.

A share is p = sum_i W_i 1_i with standard error sqrt(sum_i W_i^2 (1_i - p)^2), which for equal weights is
sqrt(p (1 - p) / n).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial.distance import cdist

from pgps import _checks
from pgps.metrics.base import AnyArray, finite_array, normalised_weights, one_dimension, same_dim


class Share(NamedTuple):
    """A share of a weighted sample.

    Attributes:
        mass: Its weight, between 0 and 1.
        error: The standard error of `mass`.
    """

    mass: float
    error: float


class ModeTable(NamedTuple):
    """The share of each mode; print it to look at it.

    Attributes:
        mass: The modes' shares.
        error: Their standard errors.
        truth: What the shares should be, if known.
        z_score: (mass - truth) / sqrt(truth (1 - truth) sum_i W_i^2). This standard error is that of a sample with
            the true shares, so that a mode without particles has a finite z-score.
    """

    mass: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]
    truth: Float[np.ndarray, " k"] | None = None
    z_score: Float[np.ndarray, " k"] | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """The indices of the modes that hold less than half of their true mass."""
        if self.truth is None:
            raise ValueError("masses must be known to tell missing modes, got None; pass masses to mode_table")
        return tuple(np.flatnonzero(self.mass < self.truth / 2).tolist())

    def __str__(self) -> str:
        columns = {"mass": self.mass, "error": self.error, "truth": self.truth, "z": self.z_score}
        known = {name: values for name, values in columns.items() if values is not None}
        rows = ["mode" + "".join(f"{name:>10}" for name in known)]
        for k, row in enumerate(zip(*known.values(), strict=True)):
            cells = (f"{x:>10.{1 if name == 'z' else 4}f}" for name, x in zip(known, row, strict=True))
            rows.append(f"{k:>4}" + "".join(cells))
        return "\n".join(rows)


def share(inside: Bool[AnyArray, " n"], log_weights: Float[AnyArray, " n"] | None = None) -> Share:
    """The weighted share of the particles that are `inside`."""
    values = np.asarray(inside)
    if values.dtype != bool or values.ndim != 1 or values.size == 0:
        got = f"shape {values.shape} and dtype {values.dtype}"
        raise ValueError(f"inside must be a boolean array of shape (n,), got {got}; pass one truth value per particle")
    return _share(values, normalised_weights(log_weights, len(values)))


def score_1(particles: Float[AnyArray, "n 1"], log_weights: Float[AnyArray, " n"] | None = None) -> Share:
    """Section 5.1.1: the share of the particles above 5, which for `mode_discovery` should be 0.4993."""
    return share(_line(particles) > 5, log_weights)


def score_2(particles: Float[AnyArray, "n 1"], log_weights: Float[AnyArray, " n"] | None = None) -> Share:
    """Section 5.1.2: the share of the particles below 0, which should be 0.0010."""
    return share(_line(particles) < 0, log_weights)


def weight_mismatch(
    particles: Float[AnyArray, "n dim"],
    means: Float[AnyArray, "k dim"],
    masses: Float[AnyArray, " k"],
    radius: float = 1.0,
    log_weights: Float[AnyArray, " n"] | None = None,
) -> float:
    """The paper's e = sqrt(sum_j (share_j - mass_j)^2), where share_j lies within `radius` of mean j.

    Args:
        particles: The sample.
        means: The modes' means.
        masses: The modes' true masses, which sum to 1.
        radius: The reach of a mode. Particles beyond the reach of all modes count for none.
        log_weights: The particles' log-weights.
    """
    _checks.positive("radius", radius)
    distances, weights = _distances(particles, means, log_weights)
    shares = weights @ (distances <= radius)
    return float(np.linalg.norm(shares - _masses(masses, len(shares))))


def mode_table(
    particles: Float[AnyArray, "n dim"],
    means: Float[AnyArray, "k dim"],
    masses: Float[AnyArray, " k"] | None = None,
    log_weights: Float[AnyArray, " n"] | None = None,
) -> ModeTable:
    """The share of the particles that are nearest to each mean.

    Args:
        particles: The sample.
        means: The modes' means.
        masses: The modes' true masses, which sum to 1, if known.
        log_weights: The particles' log-weights.
    """
    distances, weights = _distances(particles, means, log_weights)
    nearest = np.argmin(distances, axis=1)
    mass, error = np.array([_share(nearest == k, weights) for k in range(distances.shape[1])]).T
    if masses is None:
        return ModeTable(mass, error)
    truth = _masses(masses, len(mass))
    difference, scale = mass - truth, np.sqrt(truth * (1 - truth) * np.sum(weights**2))
    # A mode that should hold nothing, or everything, has no spread: it is right or infinitely far off.
    z_score = np.divide(difference, scale, out=np.copysign(np.inf, difference), where=scale > 0)
    return ModeTable(mass, error, truth, np.where(np.abs(difference) < 1e-12, 0.0, z_score))


def _share(inside: np.ndarray, weights: np.ndarray) -> Share:
    mass = weights @ inside
    return Share(float(mass), float(np.linalg.norm(weights * (inside - mass))))


def _line(particles: AnyArray) -> np.ndarray:
    return one_dimension("particles", finite_array("particles", particles, 2), "this score is for one dimension")


def _distances(
    particles: AnyArray, means: AnyArray, log_weights: AnyArray | None
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, " n"]]:
    """The distance of each particle to each mean, and the particles' weights."""
    points, centers = finite_array("particles", particles, 2), finite_array("means", means, 2)
    same_dim("means", centers, "particles", points.shape[1])
    return cdist(points, centers), normalised_weights(log_weights, len(points))


def _masses(masses: AnyArray, k: int) -> np.ndarray:
    values = finite_array("masses", masses, 1)
    if len(values) != k:
        raise ValueError(f"masses must have shape ({k},), got {values.shape}; pass one number per mean")
    if np.any(values < 0) or abs(values.sum() - 1) > 1e-5:
        raise ValueError(f"masses must not be negative and sum to 1, got {_checks.show(values)}; divide by their sum")
    return values / values.sum()  # single precision leaves a remainder
