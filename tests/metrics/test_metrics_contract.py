"""What every metric has in common: how it takes particles and log-weights, and what it says of bad ones."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from helpers import over
from pgps import metrics

Metric = Callable[..., Any]

REFERENCE = np.random.default_rng(1).normal(1.0, 2.0, (6, 1))
MEANS, MASSES = np.array([[0.0], [2.0]]), np.array([0.4, 0.6])

# Each is a function of one-dimensional particles and their log-weights, to numbers.
METRICS: dict[str, Metric] = {
    "score-1": lambda x, w=None: metrics.score_1(x, w),
    "score-2": lambda x, w=None: metrics.score_2(x, w),
    "weight-mismatch": lambda x, w=None: metrics.weight_mismatch(x, MEANS, MASSES, 1.0, w),
    "mode-table": lambda x, w=None: tuple(metrics.mode_table(x, MEANS, MASSES, w)),
    "wasserstein-1": lambda x, w=None: metrics.wasserstein_1(x, REFERENCE, w),
    "wasserstein-1-second": lambda x, w=None: metrics.wasserstein_1(REFERENCE, x, None, w),
    "wasserstein-2": lambda x, w=None: metrics.wasserstein_2(x, REFERENCE, w),
    "wasserstein-2-plane": lambda x, w=None: metrics.wasserstein_2(plane(x), plane(REFERENCE), w),
    "wasserstein-2-plane-second": lambda x, w=None: metrics.wasserstein_2(plane(REFERENCE), plane(x), None, w),
    "mmd": lambda x, w=None: metrics.mmd_squared(x, REFERENCE, None, w),
    "mmd-second": lambda x, w=None: metrics.mmd_squared(REFERENCE, x, None, None, w),
    "stein": lambda x, w=None: metrics.kernel_stein_discrepancy(x, slope(x), w),
    "stein-unbiased": lambda x, w=None: metrics.kernel_stein_discrepancy(x, slope(x), w, unbiased=True),
}
# A repeated particle is one of larger weight, except where a standard error or the pairs of copies count.
NOT_REPLICABLE = {"score-1", "score-2", "mode-table", "mmd", "mmd-second", "stein-unbiased"}
REPLICABLE = {name: metric for name, metric in METRICS.items() if name not in NOT_REPLICABLE}


def plane(x: Any) -> Any:
    """The particles on a line in the plane, if they are on a line at all."""
    return np.concatenate([np.asarray(x), 0.5 * np.asarray(x)], axis=1) if np.ndim(x) == 2 else x


def slope(x: Any) -> Any:
    return 1.0 - np.asarray(x)


def sample() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(1.5, 3.0, (5, 1)), rng.normal(size=5)


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.array(actual), np.array(expected), rtol=tolerance, atol=tolerance)


@over("metric", METRICS)
def test_log_weights_are_unnormalised(metric: Metric):
    x, log_weights = sample()
    assert_same(metric(x, log_weights - 1e4), metric(x, log_weights))
    assert_same(metric(x, np.full(5, 700.0)), metric(x))


@over("metric", METRICS)
def test_a_particle_without_weight_counts_for_nothing(metric: Metric):
    x, log_weights = sample()
    far = np.concatenate([x[:2], [[-40.0]], x[2:]])
    assert_same(metric(far, np.insert(log_weights, 2, -np.inf)), metric(x, log_weights))


@over("metric", METRICS)
def test_order_and_kind_of_array_do_not_matter(metric: Metric):
    x, log_weights = sample()
    order = np.array([3, 0, 4, 1, 2])
    assert_same(metric(jnp.asarray(x[order]), jnp.asarray(log_weights[order])), metric(x, log_weights))


@over("metric", REPLICABLE)
def test_weights_are_copies(metric: Metric):
    x, _ = sample()
    copies = np.array([1, 3, 2, 1, 4])
    assert_same(metric(x, np.log(copies)), metric(np.repeat(x, copies, axis=0)))


@pytest.mark.parametrize("name", ["score-1", "score-2", "mode-table"])
def test_weighted_masses_are_those_of_copies(name: str):
    x, _ = sample()
    copies = np.array([1, 3, 2, 1, 4])
    weighted, repeated = METRICS[name](x, np.log(copies)), METRICS[name](np.repeat(x, copies, axis=0))
    assert_same(weighted[0], repeated[0])


@over("metric", METRICS)
@pytest.mark.parametrize(
    ("particles", "log_weights", "message"),
    [
        (np.zeros(5), None, r"must have 2 axes, got shape \(5,\); pass .*\[:, None\]"),
        (np.zeros((5, 1, 1)), None, r"must have 2 axes, got shape \(5, 1, 1\); reshape"),
        (np.zeros((0, 1)), None, r"must not be empty, got shape \(0, .\); pass"),
        (np.array([[0.0], [np.nan], [np.inf]]), None, "must be finite, got nan or inf in 2 of 3 rows; leave"),
        (np.zeros((5, 1)), np.zeros(4), r"log_weights must have shape \(5,\), got \(4,\); pass"),
        (np.zeros((5, 1)), np.zeros((5, 1)), r"log_weights must have shape \(5,\), got \(5, 1\); pass"),
        (np.zeros((5, 1)), np.array([0, 0, np.nan, 0, 0]), "log_weights must be finite or -inf, got .*nan.*; replace"),
        (np.zeros((5, 1)), np.array([0, 0, np.inf, 0, 0]), "log_weights must be finite or -inf, got .*inf.*; replace"),
        (np.zeros((5, 1)), np.full(5, -np.inf), "log_weights must leave a particle with weight, got -inf only; pass"),
    ],
)
def test_bad_input(metric: Metric, particles: np.ndarray, log_weights: np.ndarray | None, message: str):
    with pytest.raises(ValueError, match=message) as error:
        metric(particles, log_weights)
    assert "\n" not in str(error.value)


def test_no_numbers():
    for value in ("particles", [[1.0], [2.0, 3.0]], np.array([[1j]])):
        with pytest.raises(TypeError, match="particles must be an array of real numbers, got .*; pass"):
            metrics.score_1(value)  # pyright: ignore[reportArgumentType]


def test_different_dimensions():
    for metric in (metrics.wasserstein_1, metrics.wasserstein_2, metrics.mmd_squared):
        with pytest.raises(ValueError, match=r"y must have 2 columns as x, got shape \(4, 3\); compare"):
            metric(np.zeros((5, 2)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"means must have 2 columns as particles, got shape \(4, 3\); compare"):
        metrics.mode_table(np.zeros((5, 2)), np.zeros((4, 3)))
    for metric in (metrics.score_1, metrics.score_2):
        with pytest.raises(ValueError, match=r"particles must have one column, got shape \(5, 2\); this score"):
            metric(np.zeros((5, 2)))


def test_normalised_weights():
    assert metrics.normalised_weights(None, 4).tolist() == [0.25] * 4
    weights = metrics.normalised_weights(jnp.array([-jnp.inf, 800.0, 800.0 + jnp.log(3.0)]), 3)
    np.testing.assert_allclose(weights, [0, 0.25, 0.75], atol=1e-4)  # single precision at 800
    with pytest.raises(ValueError, match="n must be at least 1, got 0; pass"):
        metrics.normalised_weights(None, 0)
