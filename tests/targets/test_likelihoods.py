"""Likelihoods of labels: their formulas by NumPy and SciPy, their predictions, and the labels that they refuse."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from helpers import normal_array
from pgps.targets import AbstractLikelihood, Bernoulli, Categorical, Gaussian


@pytest.mark.usefixtures("x64")
def test_categorical():
    z = np.asarray(normal_array(3)) * 4
    for label in range(3):
        assert Categorical().log_prob(jnp.asarray(z), jnp.asarray(label)) == pytest.approx(
            special.log_softmax(z)[label]
        )
    np.testing.assert_allclose(Categorical().predict(jnp.asarray(z)), special.softmax(z))


@pytest.mark.usefixtures("x64")
def test_bernoulli():
    for z in (-40.0, -1.3, 0.0, 2.5, 800.0):
        outputs = jnp.array([z])
        np.testing.assert_allclose(Bernoulli().predict(outputs), [special.expit(-z), special.expit(z)], rtol=1e-12)
        expected = [special.log_expit(-z), special.log_expit(z)]
        found = [Bernoulli().log_prob(outputs, jnp.asarray(label)) for label in (0, 1)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_gaussian():
    z, y = normal_array(4), normal_array(4, seed=1)
    expected = stats.norm.logpdf(y, z, 0.3).sum()
    assert Gaussian(0.3).log_prob(z, y) == pytest.approx(expected)
    np.testing.assert_array_equal(Gaussian(0.3).predict(z), z)


def test_labels_that_fit():
    labels = Categorical().check(np.array([2.0, 0.0, 1.0]), 3)
    assert (labels.tolist(), labels.dtype) == ([2, 0, 1], jnp.int32)
    assert Bernoulli().check(np.array([True, False]), 1).tolist() == [1, 0]
    assert Gaussian().check(np.array([1, 2]), 1).tolist() == [[1.0], [2.0]]
    assert Gaussian().check(np.ones((5, 2)), 2).shape == (5, 2)


@pytest.mark.parametrize(
    ("likelihood", "labels", "num_outputs", "error", "words"),
    [
        (Categorical(), [0, 1, 3], 3, ValueError, "labels must lie in 0, ..., 2, got 3; count classes from 0, or"),
        (Categorical(), [0, -1, 2], 3, ValueError, "labels must lie in 0, ..., 2, got -1"),
        (Categorical(), [0.5, 1.0], 3, ValueError, "labels must be one class index per row, got"),
        (Categorical(), [0.0, np.nan], 3, ValueError, "labels must be one class index per row, got"),
        (Categorical(), [[0], [1]], 3, ValueError, "labels must be one class index per row, got"),
        (Categorical(), ["M", "R"], 2, TypeError, "labels must be numbers, got"),
        (Categorical(), [0, 0], 1, ValueError, "categorical network must have 2 outputs or more, got 1; use Bernoulli"),
        (Bernoulli(), [0, 2], 1, ValueError, "labels must lie in 0, ..., 1, got 2"),
        (Bernoulli(), [0, 1], 2, ValueError, "Bernoulli network must have 1 output, got 2; use Categorical"),
        (Gaussian(), [1.0, np.inf], 1, ValueError, "labels must be finite, got"),
        (Gaussian(), [1.0, 2.0], 2, ValueError, "labels must have 2 numbers per row, got 1; match them"),
        (Gaussian(), ["a", "b"], 1, TypeError, "labels must be numbers, got"),
    ],
)
def test_labels_that_do_not_fit(likelihood: AbstractLikelihood, labels: Any, num_outputs: int, error: Any, words: str):
    with pytest.raises(error, match=re.escape(words)) as caught:
        likelihood.check(np.array(labels), num_outputs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan])
def test_noise_has_a_scale(scale: float):
    with pytest.raises(ValueError, match=f"scale must be .*, got {scale}; "):
        Gaussian(scale)


@pytest.mark.usefixtures("x64")
def test_a_sum_over_classes_is_one():
    outputs = 30 * normal_array(5)
    total = sum(jnp.exp(Categorical().log_prob(outputs, jnp.asarray(label))) for label in range(5))
    assert total == pytest.approx(1.0)
    assert jnp.sum(Categorical().predict(outputs)) == pytest.approx(1.0)
    assert all(np.isfinite(jax.grad(lambda z: Categorical().log_prob(z, jnp.asarray(1)))(1e4 * outputs)))
