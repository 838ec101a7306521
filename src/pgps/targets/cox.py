"""The log-Gaussian Cox process on a grid: many counts, each Poisson, whose log-intensity is a Gaussian field.

    x ~ N(0, I),    f = m + L x,    L L' = K,    K_ij = s^2 exp(-|i - j| / (M l)),

    ln p(y, x) = ln N(x; 0, I) + sum_i [y_i f_i - exp(f_i) / M^2],

for the M^2 cells i of an M x M grid on the unit square, |i - j| in cells. The field is whitened: K is not seen by the
sampler's prior. As in the literature the Poisson law's -ln y_i! and its ln of the cell's area are left out, so that the
density is the point process's, with respect to one of unit rate. Source: Moller, Syversveen and Waagepetersen, "Log
Gaussian Cox processes" (1998), with the pine saplings' s^2 = 1.91, l = 1/33 and m = ln 126 - s^2 / 2 used there.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.initial import Normal
from pgps.targets.base import AbstractPosterior, as_floats
from pgps.targets.datasets import load_dataset


def count(points: np.ndarray, grid: int) -> np.ndarray:
    """The number of points of the unit square in each cell; a point on the far edge is in the last cell."""
    return np.histogram2d(*points.T, bins=grid, range=[(0, 1), (0, 1)])[0]


def stretch(points: np.ndarray) -> np.ndarray:
    """The points with each coordinate's range stretched to [0, 1]."""
    return (points - points.min(axis=0)) / np.ptp(points, axis=0)


def _covariance(grid: int, variance: float, length: float) -> np.ndarray:
    cells = np.stack(np.divmod(np.arange(grid**2), grid), axis=-1) / grid
    distances = np.linalg.norm(cells[:, None] - cells, axis=-1)
    return variance * np.exp(-distances / length)


def _intensity(log_intensity: Float[Array, " cells"]) -> Float[Array, " cells"]:
    """exp, and its tangent from 60 on: there single precision overflows, and the density is nil either way."""
    capped = jnp.minimum(log_intensity, 60.0)
    return jnp.exp(capped) * (1 + log_intensity - capped)


class LogGaussianCox(AbstractPosterior):
    """The posterior of a whitened Gaussian field, given counts on a square grid; call it for ln p(counts, x).

    Args:
        counts: The number of points in each cell, one row of cells per row.
        mean: The log-intensity's mean m.
        variance: The log-intensity's variance s^2.
        length: Its correlation length l, where the square has side 1.
        reference_log_evidence: ln p(counts), where it is known.
    """

    counts: Float[Array, " cells"]
    cholesky: Float[Array, "cells cells"]
    mean: Scalar
    reference_log_evidence: float | None = eqx.field(static=True, default=None)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self,
        counts: Float[np.ndarray, "grid grid"],
        mean: float,
        variance: float,
        length: float,
        reference_log_evidence: float | None = None,
    ):
        counts = np.asarray(counts)
        if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.size == 0:
            raise ValueError(f"counts must have shape (grid, grid), got {counts.shape}; count on a square grid")
        if not np.all((counts >= 0) & (counts == np.round(counts))):
            raise ValueError(f"counts must be whole and not negative, got {_checks.show(counts)}; count points")
        _checks.positive("variance", variance)
        _checks.positive("length", length)
        self.counts = as_floats(counts.ravel())
        # In double precision whatever the particles' is: neighbouring cells are nearly equal where l is long.
        self.cholesky = as_floats(np.linalg.cholesky(_covariance(len(counts), variance, length)))
        self.mean = as_floats(_checks.number("mean", mean))
        self.reference_log_evidence = reference_log_evidence  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def dim(self) -> int:
        """One coordinate per cell."""
        return self.counts.shape[-1]

    def log_intensity(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """f = m + L x, cell by cell, row after row."""
        return self.mean + self.cholesky @ x

    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """ln p(counts, x)."""
        log_intensity = self.log_intensity(x)
        log_prior = -0.5 * (jnp.sum(x**2) + x.size * math.log(2 * math.pi))
        return log_prior + jnp.sum(self.counts * log_intensity - _intensity(log_intensity) / x.size)


def log_gaussian_cox(grid: int = 40) -> tuple[LogGaussianCox, Normal]:
    """The 126 pine saplings on a grid of 40 x 40 cells, from the prior N(0, I); a smaller grid is for quick looks.

    As in the benchmark the saplings' range fills the square. With the locations as they are, some are counted in
    neighbouring cells, and the log evidence is 5 less.
    """
    _checks.whole("grid", grid, at_least=1)
    points = stretch(load_dataset("pines").features)
    variance = 1.91
    mean = math.log(len(points)) - variance / 2
    target = LogGaussianCox(count(points, grid), mean, variance, 1 / 33, 506.90 if grid == 40 else None)
    return target, Normal(shape=(target.dim,))
