"""Local widths: what the scores tell of them, and moves whose step size follows them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy import stats

from helpers import as_arrays, assert_close, local_widths, normal_array
from pgps import targets
from pgps.adjustments import HMC, Adjustment
from pgps.adjustments import widths as widths_module
from pgps.adjustments.crossed import Crossed
from pgps.adjustments.widths import (
    distance_covered,
    places_covered,
    uniform_widths,
    width_functions,
    width_ratio,
    width_spread,
)
from pgps.benchmarks import gauntlet_cases
from pgps.density import Population

KEY = jax.random.key(9)
FUNNEL = targets.Funnel(6)


@eqx.filter_jit
def evaluated(density: targets.Funnel | None, x: Array) -> Population:
    """A population at the funnel or, without one, at a Gaussian with standard deviations 1, 2, ..., D."""
    scales = jnp.arange(1.0, x.shape[1] + 1)
    logdensity = (lambda x: -0.5 * jnp.sum((x / scales) ** 2)) if density is None else density
    values, scores = jax.vmap(jax.value_and_grad(logdensity))(x)
    return Population.of(x, values, scores, jnp.zeros_like(values))


@pytest.fixture(scope="module")
def draws() -> Array:
    return FUNNEL.sample(KEY, 20_000)


@pytest.fixture(scope="module")
def moved(draws: Array) -> tuple[Population, Adjustment]:
    adjustment = as_arrays(HMC(0.6, 2, 4, None, precondition=True, local=True))

    @jax.jit
    def adjust(x: Array) -> tuple[Population, Adjustment]:
        one = jnp.ones(())
        evaluate = lambda x, key=None: evaluated(FUNNEL, x)  # noqa: E731
        start = evaluated(FUNNEL, x)
        # The first moves know of no widths, and learn them.
        _, memory, _ = adjustment.adjust(KEY, one, one, start, adjustment.init(start), evaluate)
        population, _, report = adjustment.adjust(KEY, one, one, start, memory, evaluate)
        return population, report

    return adjust(draws)


def test_a_funnels_width_is_found(draws: Array):
    widths = jax.jit(local_widths)(evaluated(FUNNEL, draws))
    places = np.zeros((3, 6), np.float32)
    places[:, 0] = [-4, 0, 4]
    found = np.asarray(widths.at(widths.places(jnp.asarray(places))))
    # In the other coordinates the width is exp(x_0 / 2); in the first, where scores have the variance
    # 1/9 + 5/2, it is the same everywhere.
    np.testing.assert_allclose(np.log(found[:, 1:]), np.outer([-2, 0, 2], np.ones(5)), atol=0.15)
    np.testing.assert_allclose(np.log(found[:, 0]), -0.5 * np.log(1 / 9 + 5 / 2), atol=0.3)
    population = evaluated(FUNNEL, draws)
    # By the ratio of two quantiles, of which chance moves the upper one by 2%; a Gaussian has 1.
    assert width_spread(population, widths) < 1.6
    assert width_spread(population, uniform_widths(population)) > 5


def test_a_gaussian_is_equally_wide_everywhere():
    population = evaluated(None, normal_array(1000, 4).astype(jnp.float32) * jnp.arange(1.0, 5.0))
    widths = jax.jit(local_widths)(population)
    assert not np.any(widths.slopes)
    assert not np.any(widths.directions)
    np.testing.assert_allclose(widths.base, [1, 2, 3, 4], rtol=0.1)
    np.testing.assert_array_equal(widths.base, jax.jit(uniform_widths)(population).base)
    # Nothing stands between particles, however they move, and no quantiles are needed to say so.
    assert places_covered(population, population, widths) == np.inf
    crossed = Crossed.same(widths)
    assert crossed.places_covered(population, population) == np.inf
    assert crossed.ratio(population) == 1


def test_directions_are_the_same_by_products_and_by_a_loop(monkeypatch: pytest.MonkeyPatch):
    population = evaluated(FUNNEL, FUNNEL.sample(KEY, 1000))
    by_products = width_functions(population)
    monkeypatch.setattr(widths_module, "_FEW_DIMENSIONS", 0)
    by_a_loop = width_functions(population)
    assert np.any(by_products.slopes)
    assert_close(by_products.directions, by_a_loop.directions, 1e-4)
    assert_close(by_products.slopes, by_a_loop.slopes, 1e-4)


def test_a_funnel_is_noticed_while_it_forms():
    """From place to place its widths differ by a factor of 2.2; half of the default number of particles tell."""
    begun = targets.Funnel(10, 0.4)
    for seed in range(5):
        x = begun.sample(jax.random.key(seed), 500)
        widths = jax.jit(local_widths)(evaluated(begun, x))
        assert 1.5 < float(width_ratio(evaluated(begun, x), widths)) < 4


@pytest.mark.parametrize("dim", [2, 10])
def test_chance_makes_no_funnel(dim: int):
    def slopes(key: Array) -> Array:
        x = jax.random.normal(key, (500, dim)) * jnp.arange(1.0, dim + 1)
        return width_functions(evaluated(None, x)).slopes

    assert not np.any(jax.jit(lambda keys: jax.lax.map(slopes, keys))(jax.random.split(KEY, 100)))


def test_a_ring_is_equally_wide_everywhere():
    """Its scores have one direction each, so that small ones are common; a spike within a slab has far smaller ones."""
    angle, radius = 2 * np.pi * np.arange(2000) / 2000, 4 + 0.2 * np.asarray(normal_array(2000, 1))[:, 0]

    def spread(logdensity, x: np.ndarray) -> float:
        values, scores = jax.vmap(jax.value_and_grad(logdensity))(jnp.asarray(x, jnp.float32))
        population = Population.of(jnp.asarray(x, jnp.float32), values, scores, jnp.zeros_like(values))
        return float(width_spread(population, jax.jit(local_widths)(population)))

    assert spread(gauntlet_cases.ring, np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)) < 2.5
    scales = np.where(np.arange(6000).reshape(2000, 3) * 7919 % 1000 < 500, 0.01, 3.0)
    assert spread(gauntlet_cases.spike_and_slab, scales * np.asarray(normal_array(2000, 3))) > 5


def test_flat_and_constant_coordinates_have_finite_widths():
    x = jnp.concatenate([normal_array(50, 1), jnp.zeros((50, 1)), normal_array(50, 1, seed=3)], axis=1)
    scores = jnp.stack([-x[:, 0], jnp.zeros(50), jnp.zeros(50)], axis=1)
    population = Population.of(x, jnp.zeros(50), scores, jnp.zeros(50))
    widths = jax.jit(local_widths)(population)
    assert np.all(np.isfinite(widths.at(widths.places(x))))


def test_the_density_of_a_drawn_place_is_weighed_at_both_ends(draws: Array):
    widths = jax.jit(local_widths)(evaluated(FUNNEL, draws))
    start, end = draws[:5], draws[5:10]
    drawn = widths.drawn(jax.random.normal(KEY, (5, 2)), start)
    by_scipy = [stats.norm.logpdf(drawn, np.asarray(widths.places(x)), 0.5).sum(axis=1) for x in (start, end)]
    np.testing.assert_allclose(widths.log_ratio(drawn, start, end), by_scipy[1] - by_scipy[0], rtol=1e-3, atol=1e-3)


def test_a_funnel_is_stationary(draws: Array, moved: tuple[Population, Adjustment]):
    first = np.asarray(moved[0].particles[:, 0])
    # The means of x_0 and of x_0^2 are 0 and 9, with variances 9 and 2 * 81. Without the log-ratio of the widths, four
    # moves shift the second by 20 standard errors.
    assert abs(first.mean()) < 4 * np.sqrt(9 / len(first))
    assert abs(np.mean(first**2) - 9) < 4 * np.sqrt(162 / len(first))
    others = np.asarray(moved[0].particles[:, 1:]) * np.exp(-first / 2)[:, None]
    assert abs(np.mean(others**2) - 1) < 4 * np.sqrt(2 / others.size)


def test_moves_go_as_far_in_narrow_parts_as_in_wide_ones(draws: Array, moved: tuple[Population, Adjustment]):
    population, report = moved
    steps = np.asarray((population.particles - draws)[:, 1:] * np.exp(-draws[:, :1] / 2))
    narrow, wide = (np.mean(np.abs(steps[part])) for part in (draws[:, 0] < -3, draws[:, 0] > 3))
    # Those at the neck also come as far as to the mouth.
    assert narrow > 0.5 * wide
    assert 0.3 < report.acceptance < 0.95
    # What is covered is the lesser of two: that in units of the width, and half of that along x_0.
    start, widths = evaluated(FUNNEL, draws), jax.tree.map(lambda leaf: leaf[0], report.kept.widths.parts)
    along = float(places_covered(start, population, widths))
    # It is that of the half that covered less, of which each has widths of its own.
    assert float(report.covered) == pytest.approx(0.5 * along, rel=0.1)
    assert report.covered < distance_covered(start, population, widths)
    first, last = np.asarray(draws[:, 0]), np.asarray(population.particles[:, 0])
    assert along == pytest.approx(0.5 * np.mean((last - first) ** 2) / np.var(first), rel=0.3)


LONG, SHORT = np.array([0.6, 0.8]), np.array([0.8, -0.6])
COVARIANCE = 10.0**2 * np.outer(LONG, LONG) + 0.1**2 * np.outer(SHORT, SHORT)


@eqx.filter_jit
def evaluated_oblique(x: Array) -> Population:
    """A population at a Gaussian that is a hundred times as long as wide, across the coordinates."""
    precision = jnp.asarray(np.linalg.inv(COVARIANCE), x.dtype)
    return Population.of(x, -0.5 * jnp.einsum("ni,ij,nj->n", x, precision, x), -x @ precision, jnp.zeros(len(x)))


def oblique_draws(num: int) -> Array:
    return normal_array(num, 2).astype(jnp.float32) @ jnp.asarray(np.linalg.cholesky(COVARIANCE).T, jnp.float32)


def test_the_axes_are_those_of_the_density():
    population = evaluated_oblique(oblique_draws(2000))
    widths = jax.jit(local_widths)(population)
    root = np.asarray(widths.base)[:, None] * np.asarray(widths.axes)
    values, vectors = np.linalg.eigh(root @ root.T)
    np.testing.assert_allclose(np.sqrt(values), [0.1, 10.0], rtol=0.1)
    assert abs(vectors[:, 1] @ LONG) > 0.999
    assert width_spread(population, widths) == pytest.approx(1, abs=0.1)
    vectors = normal_array(5, 2)
    np.testing.assert_allclose(widths.lengths(widths.combine(vectors)), vectors, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("x64")
def test_the_axes_are_right_in_a_density_that_is_a_million_times_as_long_as_wide():
    """In their units it is a Gaussian of about the same width in every direction."""
    num, dim = 500, 10
    directions = np.linalg.qr(np.asarray(normal_array(dim, dim, seed=2)))[0]
    lengths, z = np.logspace(-3, 3, dim), np.asarray(normal_array(num, dim))
    zeros = jnp.zeros(num)
    x, score = jnp.asarray(z * lengths @ directions.T), jnp.asarray(-z / lengths @ directions.T)
    population = Population.of(x, zeros, score, zeros)
    widths = jax.jit(local_widths)(population)
    root = np.asarray(widths.base)[:, None] * np.asarray(widths.axes)
    widest, *_, narrowest = np.linalg.svd(root.T @ directions / lengths)[1]
    assert 0.7 < narrowest < widest < 1.3


def test_independent_coordinates_are_the_axes():
    population = evaluated(None, normal_array(1000, 4).astype(jnp.float32) * jnp.arange(1.0, 5.0))
    np.testing.assert_array_equal(jax.jit(local_widths)(population).axes, np.eye(4))


def test_too_few_particles_tell_nothing_of_axes():
    assert jax.jit(local_widths)(evaluated(None, normal_array(30, 8).astype(jnp.float32))).axes is None


def test_moves_go_along_the_density():
    adjustment = as_arrays(HMC(0.6, 2, 4, None, precondition=True, local=True))
    draws, one = oblique_draws(4000), jnp.ones(())
    population, _, report = jax.jit(
        lambda x: adjustment.adjust(
            KEY,
            one,
            one,
            evaluated_oblique(x),
            adjustment.init(evaluated_oblique(x)),
            lambda x, key=None: evaluated_oblique(x),
        )
    )(draws)
    before, after = (np.asarray(x @ LONG / 10) for x in (draws, population.particles))
    # Four moves of steps as short as the density is narrow would leave a correlation of 0.999.
    assert np.corrcoef(before, after)[0, 1] < 0.5
    assert report.acceptance > 0.7
    assert abs(np.mean(after**2) - np.mean(before**2)) < 4 * np.sqrt(4 / len(after))
    across = np.asarray(population.particles @ SHORT / 0.1)
    assert abs(np.mean(across**2) - 1) < 4 * np.sqrt(2 / len(across))
