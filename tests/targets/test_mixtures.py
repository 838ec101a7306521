"""Gaussian mixtures: their density is SciPy's, and their draws have its moments."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from helpers import assert_close, assert_moments, normal_array, over
from pgps import Normal
from pgps.targets import GaussianMixture, mode_discovery, two_modes


def uneven() -> GaussianMixture:
    """Three modes of different weights and widths in three dimensions."""
    means = jnp.array([[0.0, 3.0, -6.0], [9.0, 1.5, 0.0], [-12.0, 6.0, 6.0]])
    return GaussianMixture(jnp.array([0.2, 0.5, 0.3]), means, jnp.array([0.3, 1.0, 0.6]))


MIXTURES: dict[str, Callable[[], GaussianMixture]] = {
    "uneven": uneven,
    "two-modes": lambda: two_modes()[0],
    "mode-discovery": lambda: mode_discovery()[0],
}


def parts(mixture: GaussianMixture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.asarray(mixture.weights), np.asarray(mixture.means), np.asarray(mixture.scales)


@over("make", MIXTURES)
@pytest.mark.usefixtures("x64")
def test_logdensity(make: Callable[[], GaussianMixture]):
    mixture = make()
    weights, means, scales = parts(mixture)
    for x in np.asarray(4 * normal_array(5, means.shape[1])):
        components = [
            scipy.stats.multivariate_normal.logpdf(x, mean, scale**2) for mean, scale in zip(means, scales, strict=True)
        ]
        assert_close(mixture(jnp.asarray(x)), jnp.asarray(scipy.special.logsumexp(components, b=weights)))


@over("make", MIXTURES)
def test_it_is_finite_far_away(make: Callable[[], GaussianMixture]):
    mixture = make()
    x = jnp.full(mixture.means.shape[1], -1e4)
    value, score = jax.value_and_grad(mixture)(x)
    assert np.isfinite(value)
    # There the nearest, or widest, mode alone is felt: it pulls towards itself.
    assert np.all(np.isfinite(score))
    assert np.all(score > 0)


@pytest.mark.usefixtures("x64")
def test_it_is_normalised():
    mixture, _ = mode_discovery()
    mass, _ = scipy.integrate.quad(lambda x: np.exp(float(mixture(jnp.array([x])))), -12, 20, points=[0, 8], limit=60)
    assert mass == pytest.approx(1, abs=1e-8)
    grid = jnp.stack(jnp.meshgrid(jnp.linspace(0.5, 2.0, 601), jnp.linspace(-0.5, 0.5, 401), indexing="ij"), axis=-1)
    density = jnp.exp(jax.vmap(jax.vmap(two_modes()[0]))(grid))
    # A Riemann sum with steps of a twentieth of the width is exact to rounding.
    assert float(jnp.sum(density)) * 0.0025**2 == pytest.approx(1, abs=1e-8)


@over("make", MIXTURES)
def test_draws(make: Callable[[], GaussianMixture]):
    mixture = make()
    weights, means, scales = parts(mixture)
    draws = np.asarray(mixture.sample(jax.random.key(2), 20_000))
    mean = weights @ means
    # Independent draws: four standard errors of mean and variance, and of each mode's share.
    assert_moments(draws, mean, weights @ (means**2 + scales[:, None] ** 2) - mean**2)
    mode = np.asarray(mixture.nearest_mode(jnp.asarray(draws)))
    expected = shares_by_nearest_mean(mixture)
    shares = np.bincount(mode, minlength=len(weights)) / len(draws)
    np.testing.assert_array_less(np.abs(shares - expected), 4 * np.sqrt(expected * (1 - expected) / len(draws)))
    # Within a mode, |x - mean|^2 / scale^2 is chi-squared.
    for k in range(len(weights)):
        inside = (draws[mode == k] - means[k]) / scales[k]
        assert_moments(np.linalg.norm(inside, axis=1) ** 2, means.shape[1], 2 * means.shape[1])


def shares_by_nearest_mean(mixture: GaussianMixture) -> np.ndarray:
    """The weights: half the gap between modes is 4 widths or more, which less than 4e-5 of a mode lies beyond."""
    weights, means, scales = parts(mixture)
    gaps = np.linalg.norm(means[:, None] - means, axis=-1)
    reach = gaps / 2 / scales[:, None]
    assert np.all(reach[~np.eye(len(weights), dtype=bool)] >= 4)
    return weights


def test_nearest_mode():
    x = jnp.array([[0.0, 3.0, -3.0], [6.0, 0.0, 0.0], [-9.0, 6.0, 3.0], [30.0, 30.0, 30.0]])
    assert uneven().nearest_mode(x).tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("make", "means", "scale", "initial_scale"),
    [(two_modes, [[1.0, 0.0], [1.5, 0.0]], 0.05, np.sqrt(0.1)), (mode_discovery, [[0.0], [8.0]], 1.0, 3.0)],
)
def test_the_papers_mixtures(
    make: Callable[[], tuple[GaussianMixture, Normal]], means: list, scale: float, initial_scale: float
):
    mixture, initial = make()
    assert_close(mixture.weights, jnp.array([0.5, 0.5]), 1e-7)
    assert_close(mixture.means, jnp.array(means), 1e-7)
    assert_close(mixture.scales, jnp.full(2, scale), 1e-7)
    assert_close(initial.loc, jnp.zeros(len(means[0])), 1e-7)
    assert_close(initial.scale, jnp.full(len(means[0]), initial_scale), 1e-7)


def test_mode_discoverys_true_score():
    # P(x > 5) = (Phi(-5) + Phi(3)) / 2, which the protocol rounds to 0.4993; four standard errors of a share.
    truth = (scipy.stats.norm.sf(5) + scipy.stats.norm.cdf(3)) / 2
    assert truth == pytest.approx(0.4993, abs=5e-5)
    draws = np.asarray(mode_discovery()[0].sample(jax.random.key(5), 40_000))
    assert np.mean(draws > 5) == pytest.approx(truth, abs=4 * np.sqrt(0.25 / 40_000))
