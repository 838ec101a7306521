"""Gaussian mixtures: their density is SciPy's, and the problems are those published."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from helpers import assert_close, assert_moments, normal_array
from pgps import Normal
from pgps.targets import (
    GaussianMixture,
    false_mode,
    forty_gaussians,
    mode_discovery,
    nine_gaussians,
    student_t_mixture,
    two_modes,
    weight_recovery,
)


def uneven() -> GaussianMixture:
    """Three modes of different weights and widths in three dimensions."""
    means = jnp.array([[0.0, 3.0, -6.0], [9.0, 1.5, 0.0], [-12.0, 6.0, 6.0]])
    return GaussianMixture(jnp.array([0.2, 0.5, 0.3]), means, jnp.array([0.3, 1.0, 0.6]))


def parts(mixture: GaussianMixture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.asarray(mixture.weights), np.asarray(mixture.means), np.asarray(mixture.scales)


@pytest.mark.usefixtures("x64")
def test_logdensity():
    mixture = uneven()
    weights, means, scales = parts(mixture)
    particles = np.asarray(6 * normal_array(9, 3))
    components = [
        scipy.stats.multivariate_normal.logpdf(particles, mean, scale**2 * np.eye(3))
        for mean, scale in zip(means, scales, strict=True)
    ]
    expected = scipy.special.logsumexp(components, b=weights[:, None], axis=0)
    assert_close(jax.jit(jax.vmap(mixture))(jnp.asarray(particles)), jnp.asarray(expected))


def test_nearest_mode():
    x = jnp.array([[0.0, 3.0, -3.0], [6.0, 0.0, 0.0], [-9.0, 6.0, 3.0], [30.0, 30.0, 30.0]])
    assert uneven().nearest_mode(x).tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("make", "weights", "means", "scale", "initial_scale"),
    [
        (two_modes, [0.5, 0.5], [[1.0, 0.0], [1.5, 0.0]], 0.05, np.sqrt(0.1)),
        (mode_discovery, [0.5, 0.5], [[0.0], [8.0]], 1.0, 3.0),
        (false_mode, [0.001, 0.999], [[-5.0], [5.0]], 1.0, 2.0),
        (nine_gaussians, [1 / 9] * 9, [[a, b] for a in (-5.0, 0.0, 5.0) for b in (-5.0, 0.0, 5.0)], 0.3**0.5, 1.0),
    ],
)
def test_the_published_mixtures(
    make: Callable[[], tuple[GaussianMixture, Normal]],
    weights: list,
    means: list,
    scale: float,
    initial_scale: float,
):
    mixture, initial = make()
    assert_close(mixture.weights, jnp.array(weights), 1e-7)
    assert_close(mixture.means, jnp.array(means), 1e-7)
    assert_close(mixture.scales, jnp.full(len(weights), scale), 1e-7)
    assert_close(initial.loc, jnp.zeros(len(means[0])), 1e-7)
    assert_close(initial.scale, jnp.full(len(means[0]), initial_scale), 1e-7)


def test_weight_recovery():
    mixture, initial = weight_recovery(jax.random.key(0))
    expected = np.zeros((4, 8))
    expected[range(4), range(4)] = [1, -1, 1, -1]
    np.testing.assert_array_equal(mixture.means, expected)
    assert_close(mixture.scales, jnp.full(4, 0.15), 1e-7)
    assert_close((initial.loc, initial.scale), (jnp.zeros(8), jnp.ones(8)))
    assert_close(mixture.weights, jax.nn.softmax(jax.random.normal(jax.random.key(0), (4,))), 1e-6)
    assert not np.allclose(mixture.weights, weight_recovery(jax.random.key(1))[0].weights)


def test_forty_gaussians():
    mixture, initial = forty_gaussians(7)
    assert mixture.means.shape == (40, 7)
    # Uniform on [-40, 40]: the 280 coordinates have mean 0 and variance 80^2 / 12.
    assert np.abs(mixture.means).max() <= 40
    assert_moments(np.ravel(mixture.means), 0, 80**2 / 12)
    assert_close((mixture.weights, mixture.scales), (jnp.full(40, 1 / 40), jnp.ones(40)), 1e-7)
    assert_close((initial.loc, initial.scale), (jnp.zeros(7), jnp.full(7, 25.0)))


@pytest.mark.parametrize("make", [forty_gaussians, student_t_mixture])
def test_the_target_is_the_same_in_every_precision(make: Callable):
    single = np.asarray(make()[0].means)
    with jax.enable_x64(True):
        double = np.asarray(make()[0].means)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(single, double)


def test_the_papers_true_scores():
    # The protocol rounds P(x > 5) = (Phi(-5) + Phi(3)) / 2 to 0.4993, and P(x < 0) of the false mode to 0.0010.
    above = mode_probability(mode_discovery()[0], 5.0, np.inf)
    below = mode_probability(false_mode()[0], -np.inf, 0.0)
    assert above == pytest.approx(0.4993, abs=5e-5)
    assert below == pytest.approx(0.0010, abs=5e-5)
    sample = jax.jit(lambda mixture: mixture.sample(jax.random.key(5), 50_000)[:, 0])
    discovery, false = np.asarray(sample(mode_discovery()[0])), np.asarray(sample(false_mode()[0]))
    assert_moments(discovery > 5, above, above * (1 - above))
    assert_moments(false < 0, below, below * (1 - below))


def mode_probability(mixture: GaussianMixture, low: float, high: float) -> float:
    weights, means, scales = parts(mixture)
    component = scipy.stats.norm(means[:, 0], scales)
    return float(weights @ (component.cdf(high) - component.cdf(low)))


@pytest.mark.parametrize(
    ("weights", "means", "scales", "message"),
    [
        ([0.5, 0.5], [[0.0]], [1.0, 1.0], r"shapes \(k,\), \(k, dim\) and \(k,\), got \(2,\), \(1, 1\) and \(2,\)"),
        ([0.5, 0.5], [0.0, 8.0], [1.0, 1.0], r"got \(2,\), \(2,\) and \(2,\)"),
        ([1.0, 3.0], [[0.0], [8.0]], [1.0, 1.0], "weights must be shares that sum to 1, got .*; divide"),
        ([-0.5, 1.5], [[0.0], [8.0]], [1.0, 1.0], "weights must be shares"),
        ([0.5, 0.5], [[0.0], [8.0]], [1.0, 0.0], "scales must be positive, got .*; pass"),
    ],
)
def test_misuse(weights: list, means: list, scales: list, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        GaussianMixture(jnp.array(weights), jnp.array(means), jnp.array(scales))
    assert "\n" not in str(caught.value)


def test_it_can_be_made_within_a_transformation():
    make = lambda weights: GaussianMixture(weights, jnp.array([[0.0], [8.0]]), jnp.ones(2))(jnp.zeros(1))  # noqa: E731
    weights = jnp.array([[0.5, 0.5], [0.25, 0.75]])
    assert_close(jax.jit(jax.vmap(make))(weights), jnp.stack([make(row) for row in weights]), 1e-6)
