"""Shares of modes: counts by hand, binomial errors, and the truths of the paper's scores."""

import jax
import numpy as np
import pytest

from pgps.metrics import ModeTable, Share, mode_table, score_1, score_2, share, weight_mismatch
from pgps.targets import mode_discovery


def test_share_by_hand():
    # W = (1, 2, 5) / 8: mass 3/8, error sqrt((1 * 25 + 4 * 25 + 25 * 9) / 64) / 8.
    result = share(np.array([True, True, False]), np.log([1.0, 2.0, 5.0]))
    assert result == pytest.approx((3 / 8, np.sqrt(350) / 64), rel=1e-12)


def test_shares_error_is_binomial_for_equal_weights():
    inside = np.arange(50) < 15
    result = share(inside)
    assert isinstance(result, Share)
    assert all(type(value) is float for value in result)
    assert result == pytest.approx((0.3, np.sqrt(0.3 * 0.7 / 50)), rel=1e-12)
    assert share(np.ones(3, bool)) == pytest.approx((1.0, 0.0), abs=1e-15)
    assert share(np.zeros(3, bool)) == (0.0, 0.0)


def test_shares_error_is_the_spread_of_weighted_shares():
    # Importance sampling: x uniform with weight 2 x has P(x < 1/2) = 1/4; 1,000 repeats know a spread to 2.3 percent.
    x = np.random.default_rng(0).uniform(size=(1000, 400))
    shares = np.array([share(row < 0.5, np.log(row)) for row in x])
    spread = shares[:, 0].std()
    assert shares[:, 0].mean() == pytest.approx(0.25, abs=4 * spread / np.sqrt(1000) + 1 / 400)
    assert shares[:, 1].mean() == pytest.approx(spread, rel=4 * 0.023)


@pytest.mark.parametrize("inside", [np.zeros(3), np.zeros((3, 1), bool), np.zeros(0, bool)])
def test_bad_shares(inside: np.ndarray):
    with pytest.raises(ValueError, match=r"inside must be a boolean array of shape \(n,\), got shape .*; pass"):
        share(inside)


def test_scores_by_hand():
    x = np.array([[-1.0], [0.0], [5.0], [5.1], [9.0]])
    assert score_1(x).mass == pytest.approx(2 / 5)
    assert score_2(x).mass == pytest.approx(1 / 5)
    assert score_1(x, np.log([1.0, 1, 1, 2, 3])).mass == pytest.approx(5 / 8)
    assert score_2(x, np.log([3.0, 1, 1, 2, 1])).mass == pytest.approx(3 / 8)


def test_scores_truths():
    draws = mode_discovery()[0].sample(jax.random.key(3), 20_000)
    result = score_1(draws)
    assert abs(result.mass - 0.4993) < 4 * result.error
    # P(x < 0) = 0.0010 is what a normal law at 3.0902 has.
    result = score_2(3.0902 + np.random.default_rng(0).standard_normal((100_000, 1)))
    assert abs(result.mass - 0.0010) < 4 * result.error


def test_weight_mismatch_by_hand():
    means, masses = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]), np.array([0.5, 0.25, 0.25])
    x = np.array([[0.0, 1.0], [0.5, 0.5], [10.0, -0.9], [4.0, 4.0]])  # two, one, none, and one beyond all reach
    assert weight_mismatch(x, means, masses) == pytest.approx(0.25)
    assert weight_mismatch(x, means, masses, radius=0.95) == pytest.approx(np.sqrt(0.25**2 + 0.25**2))
    weighted = weight_mismatch(x, means, masses, log_weights=np.log([1.0, 1, 4, 2]))
    assert weighted == pytest.approx(np.sqrt(0.25**2 + 0.25**2 + 0.25**2))
    assert weight_mismatch(means, means, np.full(3, 1 / 3)) == pytest.approx(0, abs=1e-15)


def test_modes_in_reach_of_each_other_share_particles():
    assert weight_mismatch(np.array([[0.5]]), np.array([[0.0], [1.0]]), np.array([0.5, 0.5])) == pytest.approx(
        np.sqrt(0.5)
    )


def small_table() -> ModeTable:
    x = np.array([[-2.0, 0.0], [0.0, 1.0], [9.0, 0.0], [5.1, 0.0]])
    means = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 20.0]])
    return mode_table(x, means, np.array([0.25, 0.65, 0.1]), np.log([1.0, 1.0, 2.0, 4.0]))


def test_mode_table_by_hand():
    table = small_table()
    np.testing.assert_allclose(table.mass, [2 / 8, 6 / 8, 0], atol=1e-15)
    # W = (1, 1, 2, 4) / 8; for the first mode sum W^2 (1 - p)^2 = (2 * 9 + 20 * 1) / 16 / 64.
    np.testing.assert_allclose(table.error, np.sqrt([38, 38, 0]) / 32, atol=1e-15)
    assert table.truth is not None
    assert table.z_score is not None
    np.testing.assert_allclose(table.truth, [0.25, 0.65, 0.1])
    scale = np.sqrt(np.array([0.25 * 0.75, 0.65 * 0.35, 0.1 * 0.9]) * 22 / 64)
    np.testing.assert_allclose(table.z_score, [0, 0.1, -0.1] / scale, atol=1e-14)
    assert table.missing == (2,)


def test_mode_tables_text():
    assert str(small_table()).splitlines() == [
        "mode      mass     error     truth         z",
        "   0    0.2500    0.1926    0.2500       0.0",
        "   1    0.7500    0.1926    0.6500       0.4",
        "   2    0.0000    0.0000    0.1000      -0.6",
    ]


def test_mode_table_without_truth():
    table = mode_table(np.array([[0.0], [7.0], [9.0]]), np.array([[0.0], [8.0]]))
    assert str(table).splitlines()[0].split() == ["mode", "mass", "error"]
    np.testing.assert_allclose(table.mass, [1 / 3, 2 / 3])
    np.testing.assert_allclose(table.error, np.sqrt(2 / 9 / 3))
    assert table.truth is None
    assert table.z_score is None
    with pytest.raises(ValueError, match="masses must be known to tell missing modes, got None; pass masses"):
        _ = table.missing


def test_z_scores_are_standard_normal_under_the_target():
    rng, means, masses = np.random.default_rng(0), np.array([[0.0], [8.0]]), np.array([0.3, 0.7])
    draws = means[rng.choice(2, (300, 200), p=masses)] + rng.standard_normal((300, 200, 1))
    z = np.array([mode_table(x, means, masses).z_score for x in draws])[:, 0]
    # Standard errors of the mean and of the variance of 300 normal numbers.
    assert abs(z.mean()) < 4 / np.sqrt(300)
    assert z.var() == pytest.approx(1, abs=4 * np.sqrt(2 / 300))


def test_missing_is_less_than_half():
    means, masses = np.array([[0.0], [10.0]]), np.array([0.5, 0.5])
    assert mode_table(np.array([[0.0]] * 3 + [[10.0]]), means, masses).missing == ()
    assert mode_table(np.array([[0.0]] * 4 + [[10.0]]), means, masses).missing == (1,)


def test_z_scores_of_modes_without_spread():
    means, masses = np.array([[0.0], [10.0]]), np.array([1.0, 0.0])
    right, wrong = (mode_table(np.array(x), means, masses) for x in ([[0.0], [1.0]], [[0.0], [11.0]]))
    np.testing.assert_array_equal(np.array([right.z_score, wrong.z_score]), [[0, 0], [-np.inf, np.inf]])
    assert "inf" in str(wrong)
    # Neither a sum of weights nor the truth in single precision is 1 exactly.
    rounded = mode_table(np.zeros((10, 1)), means, np.array([1 + 1e-6, 0.0]), np.full(10, 0.3))
    np.testing.assert_array_equal(np.array(rounded.z_score), [0, 0])


@pytest.mark.parametrize(
    ("masses", "message"),
    [
        (np.array([0.5, 0.25, 0.25]), r"masses must have shape \(2,\), got \(3,\); pass"),
        (np.array([0.5, 0.6]), "masses must not be negative and sum to 1, got array.*; divide"),
        (np.array([1.5, -0.5]), "masses must not be negative and sum to 1, got array.*; divide"),
        (np.array([np.nan, 0.5]), "masses must be finite, got nan or inf in 1 of 2 rows"),
    ],
)
def test_bad_masses(masses: np.ndarray, message: str):
    for metric in (mode_table, weight_mismatch):
        with pytest.raises(ValueError, match=message):
            metric(np.zeros((3, 1)), np.array([[0.0], [1.0]]), masses)


def test_bad_radius():
    with pytest.raises(ValueError, match="radius must be positive, got 0; pass"):
        weight_mismatch(np.zeros((3, 1)), np.array([[0.0]]), np.ones(1), radius=0)
