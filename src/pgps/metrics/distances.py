"""Distances between two weighted samples x and y: exact Wasserstein distances and the maximum mean discrepancy.

W_p^p is the least sum_ij P_ij |x_i - y_j|^p over the couplings P of the two samples' weights, and

    MMD^2 = E k(x, x') + E k(y, y') - 2 E k(x, y)    with    k(x, y) = exp(-|x - y|^2 / (2 bandwidth^2)).
"""

import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Array, Float, Scalar
from scipy.spatial.distance import cdist

from pgps import _checks
from pgps.metrics.base import AnyArray, finite_array, normalised_weights, one_dimension, same_dim
from pgps.metrics.pairs import AbstractKernel, distinct_pair_mean, median_distance, pair_sum

_MOST_LINEAR_PROGRAMME_PAIRS = 1_000_000  # minutes
_MOST_ASSIGNMENT_PAIRS = 25_000_000  # minutes


class Gaussian(AbstractKernel):
    """exp(-|x - y|^2 / (2 bandwidth^2))."""

    bandwidth: Scalar

    def __call__(self, a: Float[Array, " dim"], b: Float[Array, " dim"]) -> Scalar:
        """Evaluate the kernel for one pair."""
        return jnp.exp(-0.5 * jnp.sum(((a - b) / self.bandwidth) ** 2))


def wasserstein_1(
    x: Float[AnyArray, "n 1"],
    y: Float[AnyArray, "m 1"],
    x_log_weights: Float[AnyArray, " n"] | None = None,
    y_log_weights: Float[AnyArray, " m"] | None = None,
) -> float:
    """The exact W1 in one dimension."""
    x, x_weights, y, y_weights = _two_samples(x, y, x_log_weights, y_log_weights)
    return _cost_on_a_line(one_dimension("x and y", x, "use wasserstein_2"), x_weights, y[:, 0], y_weights, 1)


def wasserstein_2(
    x: Float[AnyArray, "n dim"],
    y: Float[AnyArray, "m dim"],
    x_log_weights: Float[AnyArray, " n"] | None = None,
    y_log_weights: Float[AnyArray, " m"] | None = None,
) -> float:
    """The exact W2.

    In one dimension sorting solves it, for any number of particles. In more, equal weights and counts are an assignment
    problem, for some thousand particles; anything else is a linear programme, for some hundred.
    """
    x, x_weights, y, y_weights = _two_samples(x, y, x_log_weights, y_log_weights)
    if x.shape[1] == 1:
        return float(np.sqrt(_cost_on_a_line(x[:, 0], x_weights, y[:, 0], y_weights, 2)))
    # Particles without weight take no part, and without them an assignment may be left.
    x, x_weights, y, y_weights = *_carriers(x, x_weights), *_carriers(y, y_weights)
    equal = len(x) == len(y) and np.allclose(np.concatenate([x_weights, y_weights]), 1 / len(x), rtol=1e-9, atol=0)
    most = _MOST_ASSIGNMENT_PAIRS if equal else _MOST_LINEAR_PROGRAMME_PAIRS
    if len(x) * len(y) > most:
        raise ValueError(
            f"x and y must have at most {most:,} pairs here, got {len(x):,} times {len(y):,} particles; "
            "resample both to fewer particles, as many of one as of the other"
        )
    costs = cdist(x, y, "sqeuclidean")
    return float(np.sqrt(_assignment_cost(costs) if equal else _transport_cost(costs, x_weights, y_weights)))


def mmd_squared(
    x: Float[AnyArray, "n dim"],
    y: Float[AnyArray, "m dim"],
    bandwidth: float | None = None,
    x_log_weights: Float[AnyArray, " n"] | None = None,
    y_log_weights: Float[AnyArray, " m"] | None = None,
) -> float:
    """An unbiased estimate of MMD^2, which may be negative: no particle is paired with itself.

    Weighted, the mean over pairs of one sample is sum_{i != j} W_i W_j k(x_i, x_j) / (1 - sum_i W_i^2).

    Args:
        x: One sample.
        y: The other.
        bandwidth: The kernel's width; None takes the median distance in the pooled sample, where x and y have half of
            the weight each. To compare several samples with one reference, pass the same number for all.
        x_log_weights: The log-weights of `x`.
        y_log_weights: The log-weights of `y`.
    """
    x, x_weights, y, y_weights = _two_samples(x, y, x_log_weights, y_log_weights)
    if bandwidth is None:
        bandwidth = median_distance(np.concatenate([x, y]), np.concatenate([x_weights, y_weights]) / 2)
    _checks.positive("bandwidth", bandwidth)
    # The kernel sees differences only; around 0, single precision resolves them best.
    center = x.mean(axis=0)
    x, y, kernel = x - center, y - center, Gaussian(jnp.asarray(bandwidth, float))
    within = distinct_pair_mean(kernel, x, x_weights, "x") + distinct_pair_mean(kernel, y, y_weights, "y")
    return within - 2 * pair_sum(kernel, x, x_weights, y, y_weights)


def _two_samples(
    x: AnyArray, y: AnyArray, x_log_weights: AnyArray | None, y_log_weights: AnyArray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    x, y = finite_array("x", x, 2), finite_array("y", y, 2)
    same_dim("y", y, "x", x.shape[1])
    x_weights = normalised_weights(x_log_weights, len(x), "x_log_weights")
    return x, x_weights, y, normalised_weights(y_log_weights, len(y), "y_log_weights")


def _carriers(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return points[weights > 0], weights[weights > 0]


def _cost_on_a_line(x: np.ndarray, x_weights: np.ndarray, y: np.ndarray, y_weights: np.ndarray, power: int) -> float:
    """The integral over u in [0, 1] of |x's u-quantile - y's u-quantile|^power."""
    x_order, y_order = np.argsort(x), np.argsort(y)
    x_levels, y_levels = np.cumsum(x_weights[x_order]), np.cumsum(y_weights[y_order])
    x_levels, y_levels = x_levels / x_levels[-1], y_levels / y_levels[-1]
    edges = np.sort(np.concatenate([[0.0], x_levels, y_levels]))
    middles = (edges[1:] + edges[:-1]) / 2
    x_quantiles = x[x_order][np.searchsorted(x_levels, middles)]
    y_quantiles = y[y_order][np.searchsorted(y_levels, middles)]
    return float(np.diff(edges) @ np.abs(x_quantiles - y_quantiles) ** power)


def _assignment_cost(costs: np.ndarray) -> float:
    return float(np.mean(costs[scipy.optimize.linear_sum_assignment(costs)]))


def _transport_cost(costs: np.ndarray, x_weights: np.ndarray, y_weights: np.ndarray) -> float:
    """The least sum_ij P_ij c_ij with the given row and column sums of P."""
    n, m = costs.shape
    rows = scipy.sparse.kron(scipy.sparse.eye_array(n), np.ones((1, m)))
    columns = scipy.sparse.kron(np.ones((1, n)), scipy.sparse.eye_array(m))
    # The solver's tolerances are absolute: costs up to 1 and masses around 1 make them relative.
    unit_cost, unit_mass = max(costs.max(), np.finfo(float).tiny), 1 / max(n, m)
    solution = scipy.optimize.linprog(
        np.ravel(costs / unit_cost),
        A_eq=scipy.sparse.vstack([rows, columns], format="csr"),
        b_eq=np.concatenate([x_weights, y_weights]) / unit_mass,
        method="highs-ds",
    )
    if not solution.success:
        raise RuntimeError(f"the transport problem must have a solution, got: {solution.message}; resample x and y")
    return max(0.0, solution.fun) * unit_cost * unit_mass
