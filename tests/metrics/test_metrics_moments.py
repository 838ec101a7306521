"""Weighted moments: errors by hand, those of equal weights, and families."""

import jax.numpy as jnp
import numpy as np
import pytest

from pgps.metrics import moments, share


def test_by_hand():
    # W = (1, 1, 2) / 4 and f = (0, 4, 4): mean 3, deviations (-3, 1, 1), squares (9, 1, 1) of mean 3.
    found = moments(np.array([0.0, 4.0, 4.0]), np.log([1.0, 1.0, 2.0]))
    assert found.mean == pytest.approx(3.0)
    assert found.mean_error == pytest.approx(np.sqrt(9 + 1 + 4) / 4)
    assert found.sd == pytest.approx(np.sqrt(3))
    assert found.sd_error == pytest.approx(np.sqrt(36 + 4 + 16) / 4 / (2 * np.sqrt(3)))
    # The first and the last are relatives: their deviations add up before they are squared.
    related = moments(np.array([0.0, 4.0, 4.0]), np.log([1.0, 1.0, 2.0]), np.array([7, 3, 7]))
    assert related.mean_error == pytest.approx(np.sqrt((-3 + 2) ** 2 + 1) / 4)


def test_errors_are_those_of_independent_draws():
    rng = np.random.default_rng(0)
    runs = [moments(rng.normal(2.0, 3.0, 400)) for _ in range(300)]
    means, errors = np.array([run[:2] for run in runs]).T
    sds, sd_errors = np.array([run[2:] for run in runs]).T
    # A standard deviation of 300 numbers is known to 1 / sqrt(600) of itself.
    assert abs(means.std() / errors.mean() - 1) < 4 / np.sqrt(600)
    assert abs(sds.std() / sd_errors.mean() - 1) < 4 / np.sqrt(600)
    assert abs(means.mean() - 2) < 4 * 3 / np.sqrt(400 * 300)


def test_shapes_and_truth_values():
    rng = np.random.default_rng(1)
    values, log_weights = rng.normal(size=(50, 2, 3)), rng.normal(size=50)
    found = moments(jnp.asarray(values), jnp.asarray(log_weights))
    assert [x.shape for x in found] == [(2, 3)] * 4
    np.testing.assert_allclose(found.mean[1, 2], moments(values[:, 1, 2], log_weights).mean, atol=1e-6)
    inside = values[:, 0, 0] > 0
    np.testing.assert_allclose(moments(inside, log_weights)[:2], share(inside, log_weights))
    assert moments(np.ones(4))[2:] == (0.0, 0.0)


def test_copies_of_one_particle_are_one_particle():
    values = np.random.default_rng(2).normal(size=30)
    alone, copied = moments(values), moments(np.repeat(values, 5), None, np.repeat(np.arange(30), 5))
    np.testing.assert_allclose(copied, alone)


@pytest.mark.parametrize(
    ("values", "ancestors", "message"),
    [
        (np.array([1.0, np.nan]), None, "values must be finite, got nan or inf in 1 of 2 rows"),
        (np.float64(3.0), None, r"values must have 1 axes, got shape \(\)"),
        (np.zeros(3), np.zeros(2, int), r"ancestors must be 3 whole numbers, got shape \(2,\)"),
        (np.zeros(3), np.zeros(3), "ancestors must be 3 whole numbers, got shape .* and dtype float64"),
    ],
)
def test_bad_input(values: np.ndarray, ancestors: np.ndarray | None, message: str):
    with pytest.raises(ValueError, match=message):
        moments(values, None, ancestors)
