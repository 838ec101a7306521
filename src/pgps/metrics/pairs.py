"""Sums over all pairs of particles, in blocks of bounded memory, and the median distance as a length scale."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar
from scipy.spatial.distance import pdist

_BLOCK_ENTRIES = 2**22  # numbers that one block of pairs may hold
_MEDIAN_POINTS = 1000  # half a million distances: their median is good to a few percent


class AbstractKernel(eqx.Module):
    """A function k(a, b) of two points; a point is an array or a tuple of arrays."""

    @abc.abstractmethod
    def __call__(self, a: PyTree, b: PyTree) -> Scalar:
        """Evaluate the kernel for one pair."""


def pair_sum(
    kernel: AbstractKernel,
    a: PyTree,
    a_weights: Float[np.ndarray, " n"],
    b: PyTree,
    b_weights: Float[np.ndarray, " m"],
) -> float:
    """sum_ij v_i w_j k(a_i, b_j), over the pairs of two samples."""
    return float(a_weights @ _rows(kernel, a, b, b_weights, skip_diagonal=False))


def distinct_pair_mean(kernel: AbstractKernel, a: PyTree, weights: Float[np.ndarray, " n"], name: str) -> float:
    """sum_{i != j} w_i w_j k(a_i, a_j) / (1 - sum_i w_i^2), the unbiased mean over the pairs of the sample `name`."""
    total = weights @ (1 - weights)
    if total < 1e-12:
        raise ValueError(f"{name} must have at least two particles of positive weight, got one; pass more particles")
    return float(weights @ _rows(kernel, a, a, weights, skip_diagonal=True) / total)


def median_distance(points: Float[np.ndarray, "n dim"], weights: Float[np.ndarray, " n"]) -> float:
    """The weighted median distance between two different points, or 1 if there is one point only.

    Each pair has the product of its weights. Of many points, some are drawn by their weights, always the same ones.
    """
    if len(points) > _MEDIAN_POINTS:
        points = np.random.default_rng(0).choice(points, _MEDIAN_POINTS, p=weights)
        weights = np.full(_MEDIAN_POINTS, 1 / _MEDIAN_POINTS)
    distances = pdist(points)
    masses = np.outer(weights, weights)[np.triu_indices(len(points), 1)] * (distances > 0)
    if not np.any(masses > 0):
        return 1.0
    order = np.argsort(distances)
    cumulative = np.cumsum(masses[order])
    # Of an even number of equal masses it is the lower one of the two in the middle, whatever the rounding.
    return float(distances[order][np.searchsorted(cumulative, (0.5 - 1e-9) * cumulative[-1])])


def _rows(kernel: AbstractKernel, a: PyTree, b: PyTree, b_weights: np.ndarray, *, skip_diagonal: bool) -> np.ndarray:
    """sum_j w_j k(a_i, b_j) for each i; the rows are added up by the caller, in double precision."""
    a, b = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (a, b))
    entries = sum(leaf.size for leaf in jax.tree.leaves(b))
    batch_size = max(1, min(len(jax.tree.leaves(a)[0]), _BLOCK_ENTRIES // entries))
    return np.asarray(_compiled_rows(kernel, a, b, jnp.asarray(b_weights, float), skip_diagonal, batch_size), float)


@eqx.filter_jit
def _compiled_rows(
    kernel: AbstractKernel, a: PyTree, b: PyTree, b_weights: Array, skip_diagonal: bool, batch_size: int
) -> Array:
    columns = jnp.arange(len(b_weights))

    def row(index_and_point: tuple[Array, PyTree]) -> Array:
        i, point = index_and_point
        values = jax.vmap(kernel, (None, 0))(point, b)
        if skip_diagonal:
            values = jnp.where(columns == i, 0.0, values)
        return jnp.dot(values, b_weights, precision=jax.lax.Precision.HIGHEST)

    n = len(jax.tree.leaves(a)[0])
    return jax.lax.map(row, (jnp.arange(n), a), batch_size=batch_size)
