"""Gaussian mixtures: their density is SciPy's, and their draws have its moments."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jaxtyping import Array

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
    far = np.full((1, means.shape[1]), -1e4)
    particles = np.concatenate([4 * np.asarray(normal_array(5, means.shape[1])), far])
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(mixture)))(jnp.asarray(particles))
    components = [
        scipy.stats.multivariate_normal.logpdf(particles, mean, scale**2 * np.eye(len(mean)))
        for mean, scale in zip(means, scales, strict=True)
    ]
    assert_close(values, jnp.asarray(scipy.special.logsumexp(components, b=weights[:, None], axis=0)))
    # Far away, where every density underflows, there is still a slope, and it points back.
    assert np.all(np.isfinite(scores))
    assert np.all(scores[-1] > 0)


@pytest.mark.usefixtures("x64")
def test_it_is_normalised():
    # Riemann sums with steps of a twentieth of a mode's width are exact to rounding.
    x = jnp.linspace(-12.0, 20.0, 641)[:, None]
    assert mass(mode_discovery()[0], x) * 0.05 == pytest.approx(1, abs=1e-8)
    axes = jnp.linspace(0.5, 2.0, 601), jnp.linspace(-0.5, 0.5, 401)
    grid = jnp.stack(jnp.meshgrid(*axes), axis=-1).reshape(-1, 2)
    assert mass(two_modes()[0], grid) * 0.0025**2 == pytest.approx(1, abs=1e-8)


@jax.jit
def mass(mixture: GaussianMixture, grid: Array) -> Array:
    return jnp.sum(jnp.exp(jax.vmap(mixture)(grid)))


def draw(mixture: GaussianMixture, key: Array) -> np.ndarray:
    return np.asarray(jax.jit(lambda mixture, key: mixture.sample(key, 20_000))(mixture, key))


@over("make", MIXTURES)
def test_draws(make: Callable[[], GaussianMixture]):
    mixture = make()
    weights, means, scales = parts(mixture)
    draws = draw(mixture, jax.random.key(2))
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
    draws = draw(mode_discovery()[0], jax.random.key(5))
    assert np.mean(draws > 5) == pytest.approx(truth, abs=4 * np.sqrt(0.25 / len(draws)))
