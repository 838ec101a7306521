"""Particles as columns of numbers: their names, their weights, and which few of many to look at."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree
from scipy.special import ndtri

from pgps.density import Structure
from pgps.result import Result

MOST_SHOWN = 5
"""So many coordinates fit into one picture."""

_LEAST_GAUSSIAN = 3
_MOST_PARTICLES = 2000
_MOST_NUMBERS = 20_000_000
_MOST_CANDIDATES = 200


def flatten(particles: PyTree) -> Float[np.ndarray, "n dim"]:
    """Particles as flat vectors, one in each row."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(particles)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def resampled(weights: Float[np.ndarray, " n"], num: int) -> Int[np.ndarray, " num"]:
    """Indices of `num` particles that stand for all, each as often as its weight says: systematic, without chance."""
    sums = np.cumsum(weights)
    return np.searchsorted(sums, (np.arange(num) + 0.5) / num * sums[-1], side="right")


@dataclass(frozen=True)
class Coordinates:
    """A result's particles, flat.

    Attributes:
        names: A name for each coordinate.
        columns: One particle in each row.
        weights: The particles' weights, which sum to 1.
    """

    names: Sequence[str]
    columns: Float[np.ndarray, "n dim"]
    weights: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, result: Result) -> "Coordinates":
        """The coordinates of a result."""
        structure = Structure.of(jax.tree.map(lambda leaf: leaf[0], result.particles))
        log_weights = np.asarray(result.log_weights, float)
        weights = np.exp(log_weights - log_weights.max())
        return cls(structure.names, flatten(result.particles).astype(float), weights / weights.sum())

    def describe(self, index: int) -> Float[np.ndarray, "5"]:
        """A coordinate's weighted mean, standard deviation, and 5 %, 50 % and 95 % quantiles."""
        column = self.columns[:, index]
        mean = self.weights @ column
        order = np.argsort(column)
        positions = np.searchsorted(np.cumsum(self.weights[order]), [0.05, 0.5, 0.95])
        quantiles = column[order][np.minimum(positions, len(column) - 1)]
        return np.array([mean, np.sqrt(self.weights @ (column - mean) ** 2), *quantiles])

    def most_telling(self, among: Int[np.ndarray, " some"] | None = None) -> list[int]:
        """The few coordinates to look at first: those whose marginals are least Gaussian, and the most dependent pair.

        Args:
            among: The coordinates to choose from; all if None.
        """
        candidates = np.arange(self.columns.shape[1]) if among is None else np.asarray(among)
        if len(candidates) <= MOST_SHOWN:
            return candidates.tolist()
        num = max(min(len(self.weights), _MOST_PARTICLES, _MOST_NUMBERS // len(candidates)), 2)
        scores = _standardised(self.columns[np.ix_(resampled(self.weights, num), candidates)])
        # Wasserstein's distance from a Gaussian of the same mean and variance, in standard deviations.
        gaussian = ndtri((np.arange(num) + 0.5) / num)
        distances = np.sqrt(np.mean((np.sort(scores, axis=0) - gaussian[:, None]) ** 2, axis=0))
        order = np.argsort(-distances, kind="stable")
        near = order[:_MOST_CANDIDATES]
        # How a coordinate goes with another, or with its size: in a funnel only the latter is seen.
        sizes = _standardised(np.abs(scores[:, near]))
        dependence = np.maximum(np.abs(scores[:, near].T @ scores[:, near]), np.abs(scores[:, near].T @ sizes))
        np.fill_diagonal(dependence, 0)
        pair = near[list(np.unravel_index(np.argmax(dependence), dependence.shape))]
        chosen = list(dict.fromkeys([*order[:_LEAST_GAUSSIAN], *pair, *order]))[:MOST_SHOWN]
        return np.sort(candidates[chosen]).tolist()


def _standardised(columns: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """Columns of mean 0 and variance 1; those that are constant become 0."""
    centered = columns - columns.mean(axis=0)
    scales = centered.std(axis=0)
    return np.divide(centered, scales, out=np.zeros_like(centered), where=scales > 1e-7 * np.abs(columns).max(axis=0))
