"""Stein variational gradient descent: its formula by autodiff, its bandwidth, its memory, and where it settles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import pgps
from helpers import bumpy, normal_array
from pgps.density import Problem
from pgps.methods import SVGD, svgd

KEY = jax.random.key(6)


@jax.jit
def stein_by_autodiff(x: Array, h: float) -> Array:
    """phi(x_i) = mean_j [k(x_j, x_i) grad ln p(x_j) + grad_{x_j} k(x_j, x_i)], pair by pair."""
    kernel = lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2) / h)  # noqa: E731
    pair = lambda a, b: kernel(a, b) * jax.grad(bumpy)(a) + jax.grad(kernel)(a, b)  # noqa: E731
    return jax.vmap(lambda b: jnp.mean(jax.vmap(lambda a: pair(a, b))(x), axis=0))(x)


def lower_median_of_squares(x: np.ndarray) -> float:
    """The median of the pairs' distances, squared; of an even number of them the lower one of the middle two."""
    i, j = np.triu_indices(len(x), 1)
    squares = np.sort(np.sum((x[i] - x[j]) ** 2, axis=1))
    lower = squares[(len(squares) - 1) // 2]
    if len(squares) % 2:
        assert np.sqrt(lower) == pytest.approx(np.median(np.sqrt(squares)))
    return float(lower)


@pytest.mark.parametrize("num", [5, 6], ids=["even-pairs", "odd-pairs"])
@pytest.mark.parametrize("bandwidth", [None, 0.8], ids=["median", "fixed"])
def test_steps_by_the_formula(x64: None, num: int, bandwidth: float | None):
    initial = pgps.Normal(jnp.array([0.5, -1.0]), 1.3)
    x = Problem.of(bumpy, initial).draw(jax.random.split(KEY)[0], num)
    bandwidths = []
    for _ in range(2):
        bandwidths.append(lower_median_of_squares(np.asarray(x)) / np.log(num) if bandwidth is None else bandwidth)
        x = x + 0.2 * stein_by_autodiff(x, bandwidths[-1])
    result = pgps.sample(bumpy, initial, key=KEY, num_particles=num, method=SVGD(0.2, 2, bandwidth))
    # The median is found by 26 halvings: to 1e-7 of the largest distance.
    np.testing.assert_allclose(result.trace["bandwidth"], bandwidths, rtol=1e-6)
    np.testing.assert_allclose(result.particles, x, atol=1e-6 if bandwidth is None else 1e-12)
    assert result.num_evaluations.gradients == num * 3


def test_two_particles_have_a_bandwidth():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    assert float(svgd.median_bandwidth(x)) == pytest.approx(25 / np.log(3), rel=1e-5)


def test_particles_in_one_place_have_a_direction():
    x = jnp.ones((5, 2))
    score = normal_array(5, 2)
    direction = svgd.stein_direction(x, score, svgd.median_bandwidth(x))
    np.testing.assert_allclose(direction, np.broadcast_to(score.mean(axis=0), (5, 2)), atol=1e-6)


@pytest.mark.parametrize("place", [0.1, 1e4])
def test_particles_in_one_place_are_at_distance_0(place: float):
    """Rounding must not pass for a distance: it would be taken for the kernel's scale."""
    x = jnp.full((7, 300), place) + jnp.linspace(0.0, 1.0, 300)
    assert not np.any(svgd.squared_distances(x))
    assert float(svgd.median_bandwidth(x)) == pytest.approx(1 / np.log(7))


def test_squared_distances_pair_by_pair():
    x = np.array(normal_array(9, 40) + 5.0)
    expected = np.sum((x[:, None] - x) ** 2, axis=2)
    found = np.asarray(svgd.squared_distances(jnp.asarray(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert not np.any(np.diagonal(found))
    # A pair of copies among others is at distance 0, and close ones are not.
    x[1], x[2] = x[0], x[0] + 0.05
    found = np.asarray(svgd.squared_distances(jnp.asarray(x)))
    assert found[0, 1] == 0
    assert found[0, 2] == pytest.approx(40 * 0.05**2, rel=1e-2)


def test_the_median_over_some_particles_is_that_over_all_to_a_few_percent():
    x = np.asarray(normal_array(1500, 3))
    bandwidth = float(jax.jit(svgd.median_bandwidth)(jnp.asarray(x)))
    assert bandwidth == pytest.approx(lower_median_of_squares(x) / np.log(1500), rel=0.05)
    some = lower_median_of_squares(x[:256]) / np.log(1500)
    assert bandwidth == pytest.approx(some, rel=1e-5)


@pytest.mark.parametrize("most_entries", [1, 37, 100, 400])
def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch, most_entries: int):
    # 37 particles in blocks of 1, 1, 2 and 10.
    x, score = normal_array(37, 3), normal_array(37, 3, seed=1)
    whole = svgd.stein_direction(x, score, 0.9)
    monkeypatch.setattr(svgd, "_MOST_ENTRIES", most_entries)
    np.testing.assert_allclose(svgd.stein_direction(x, score, 0.9), whole, rtol=1e-4, atol=1e-6)


def test_memory_for_ten_thousand_particles_is_bounded():
    """The whole kernel would take 400 MB, and more for what is made of it."""
    step = jax.jit(lambda x, score: svgd.stein_direction(x, score, svgd.median_bandwidth(x)))
    shape = jax.ShapeDtypeStruct((10_000, 10), jnp.float32)
    memory = step.lower(shape, shape).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 100e6


def test_a_gaussian_is_found():
    """At a fixed point E[x score' + I] = 0 over the particles' kernel; mean and spread come near the target's."""
    law = pgps.Normal(jnp.array([1.0, -2.0]), jnp.array([0.5, 1.0]))
    method = SVGD(0.3, 500)
    result = pgps.sample(law.logdensity, pgps.Normal(shape=(2,)), key=KEY, num_particles=100, method=method)
    np.testing.assert_allclose(result.particles.mean(axis=0), [1.0, -2.0], atol=0.03)
    # A deterministic quadrature: it is not off by a sampling error, but particles are somewhat too narrow.
    np.testing.assert_allclose(result.particles.std(axis=0), [0.5, 1.0], rtol=0.1)
