"""Calibration: small tables by hand, scikit-learn where it has the metric, and what is said of bad input."""

import jax.numpy as jnp
import numpy as np
import pytest

from pgps import metrics

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.4, 0.4, 0.2], [0.0, 1.0, 0.0]])
Y = np.array([0, 1, 1, 1])

SCORES = {
    "accuracy": metrics.accuracy,
    "nll": metrics.negative_log_likelihood,
    "brier": metrics.brier_score,
    "ece": metrics.calibration_error,
    "classwise-ece": metrics.classwise_calibration_error,
    "reliability": metrics.reliability,
}
OF_NETWORKS = {"entropy": metrics.predictive_entropy, "disagreement": metrics.disagreement}


def predictions(n: int = 500, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and labels that are drawn from sharper ones."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(classes), n)
    sharp = p**2 / np.sum(p**2, axis=1, keepdims=True)
    return p, np.array([rng.choice(classes, p=row) for row in sharp])


def test_scores_by_hand():
    assert metrics.accuracy(P, Y) == 0.5  # the third row's first of equals is class 0
    expected = -np.mean(np.log([0.7, 0.3, 0.4, 1.0]))
    assert metrics.negative_log_likelihood(P, Y) == pytest.approx(expected, rel=1e-12)
    rows = [0.09 + 0.04 + 0.01, 0.01 + 0.49 + 0.36, 0.16 + 0.36 + 0.04, 0.0]
    assert metrics.brier_score(P, Y) == pytest.approx(np.mean(rows), rel=1e-12)


def test_reliability_by_hand():
    # Confidences 0.7, 0.6, 0.4, 1.0 in (0, 0.5] and (0.5, 1]; right, wrong, wrong, right.
    table = metrics.reliability(P, Y, num_bins=2)
    np.testing.assert_allclose(table.edges, [0, 0.5, 1])
    np.testing.assert_allclose(table.confidence, [0.4, 2.3 / 3])
    np.testing.assert_allclose(table.accuracy, [0, 2 / 3])
    np.testing.assert_array_equal(table.counts, [1, 3])
    assert metrics.calibration_error(P, Y, num_bins=2) == pytest.approx(0.4 / 4 + 0.1 * 3 / 4)


def test_classwise_error_by_hand():
    # Gaps in (0, 0.5] and (0.5, 1]: |0.5/3 - 0| and |0.7 - 1|; |0.9/3 - 2/3| and 0; |0.3/3 - 0| and |0.6 - 0|.
    expected = np.mean([(0.5 / 3 + 0.3) / 2, (1.1 / 3) / 2, (0.1 + 0.6) / 2])
    assert metrics.classwise_calibration_error(P, Y, num_bins=2) == pytest.approx(expected)


def test_empty_bins_count_for_nothing():
    table = metrics.reliability(P, Y, num_bins=10)
    np.testing.assert_array_equal(table.counts, [0, 0, 0, 1, 0, 1, 1, 0, 0, 1])
    np.testing.assert_array_equal(np.isnan(table.confidence), table.counts == 0)
    assert metrics.calibration_error(P, Y) == pytest.approx((0.3 + 0.6 + 0.4 + 0.0) / 4)


def test_a_calibrated_prediction_has_no_error():
    p = np.repeat([[0.25, 0.75]], 8, axis=0)
    y = np.array([0, 0, 1, 1, 1, 1, 1, 1])
    assert metrics.calibration_error(p, y) == pytest.approx(0, abs=1e-12)
    assert metrics.classwise_calibration_error(p, y) == pytest.approx(0, abs=1e-12)


def test_a_label_of_probability_zero():
    assert metrics.negative_log_likelihood(P, np.array([0, 1, 1, 0])) == np.inf


def test_agrees_with_scikit_learn():
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    p, y = predictions()
    assert metrics.accuracy(p, y) == pytest.approx(sklearn_metrics.accuracy_score(y, p.argmax(axis=1)))
    assert metrics.negative_log_likelihood(p, y) == pytest.approx(sklearn_metrics.log_loss(y, p), rel=1e-9)
    by_class = [sklearn_metrics.brier_score_loss(y == c, p[:, c]) for c in range(3)]
    assert metrics.brier_score(p, y) == pytest.approx(sum(by_class), rel=1e-9)


def test_bins_agree_with_scikit_learn():
    calibration_curve = pytest.importorskip("sklearn.calibration").calibration_curve
    p, y = predictions()
    table = metrics.reliability(p, y, num_bins=7)
    frequency, confidence = calibration_curve(p.argmax(axis=1) == y, p.max(axis=1), n_bins=7)
    np.testing.assert_allclose(table.accuracy[table.counts > 0], frequency)
    np.testing.assert_allclose(table.confidence[table.counts > 0], confidence)
    gaps = []
    for c in range(3):
        frequency, confidence = calibration_curve(y == c, p[:, c], n_bins=10)
        gaps.append(np.mean(np.abs(frequency - confidence)))
    assert metrics.classwise_calibration_error(p, y) == pytest.approx(np.mean(gaps), rel=1e-9)


def test_disagreement_by_hand():
    # Two sure networks that contradict each other, and two unsure ones that agree.
    p = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
    np.testing.assert_allclose(metrics.predictive_entropy(p), np.log(2))
    np.testing.assert_allclose(metrics.disagreement(p), [np.log(2), 0], atol=1e-12)
    log_weights = np.log([0.25, 0.75])
    entropy = -0.25 * np.log(0.25) - 0.75 * np.log(0.75)
    np.testing.assert_allclose(metrics.predictive_entropy(p, log_weights), [entropy, np.log(2)])
    np.testing.assert_allclose(metrics.disagreement(p, log_weights), [entropy, 0], atol=1e-12)
    np.testing.assert_array_equal(metrics.disagreement(p, np.array([0.0, -np.inf])), 0)


def test_weights_of_networks_are_copies():
    p = np.random.default_rng(0).dirichlet(np.ones(4), (3, 20))
    copies = np.array([1, 3, 2])
    for metric in OF_NETWORKS.values():
        np.testing.assert_allclose(metric(p, np.log(copies)), metric(np.repeat(p, copies, axis=0)), atol=1e-12)


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
class TestInput:
    def test_kind_of_array_does_not_matter(self, score):
        single = np.asarray(P, np.float32)
        for actual, expected in zip(
            np.atleast_1d(np.asarray(score(jnp.asarray(single), jnp.asarray(Y)), object)),
            np.atleast_1d(np.asarray(score(single, Y), object)),
            strict=True,
        ):
            np.testing.assert_allclose(actual, expected)

    @pytest.mark.parametrize(
        ("probabilities", "labels", "message"),
        [
            (2 * P / 3, Y, "probabilities must sum to 1 over classes, got 0.66.* in 4 of 4 rows; divide"),
            (P - 0.1, Y, "probabilities must lie in .0, 1., got -0.1; pass them after the softmax"),
            (np.where(P > 0.9, np.nan, P), Y, "probabilities must be finite, got nan or inf in 1 of 4 rows; leave"),
            (P[0], Y, r"probabilities must have 2 axes, got shape \(3,\); "),
            (P, np.array([0, 1, 3, 1]), "labels must lie in 0, ..., 2, got 3; count classes from 0"),
            (P, np.array([0, 1, -1, 1]), "labels must lie in 0, ..., 2, got -1; count classes from 0"),
            (P, Y[:3], r"labels must be 4 whole numbers, got shape \(3,\) and dtype int64; pass one"),
            (P, Y.astype(float), r"labels must be 4 whole numbers, got shape \(4,\) and dtype float64; pass one"),
        ],
    )
    def test_bad_input(self, score, probabilities: np.ndarray, labels: np.ndarray, message: str):
        with pytest.raises(ValueError, match=message) as error:
            score(probabilities, labels)
        assert "\n" not in str(error.value)


def test_bad_number_of_bins():
    for score in (metrics.reliability, metrics.calibration_error, metrics.classwise_calibration_error):
        with pytest.raises(ValueError, match="num_bins must be at least 1, got 0; pass"):
            score(P, Y, 0)


@pytest.mark.parametrize("metric", OF_NETWORKS.values(), ids=OF_NETWORKS)
def test_bad_networks(metric):
    with pytest.raises(ValueError, match=r"probabilities must have 3 axes, got shape \(4, 3\); reshape"):
        metric(P)
    with pytest.raises(ValueError, match=r"log_weights must have shape \(1,\), got \(4,\); pass"):
        metric(P[None], np.zeros(4))
    with pytest.raises(ValueError, match="probabilities must sum to 1 over classes, got .*; divide"):
        metric(P[None] / 2)
