"""Stein's identity: exact draws keep it, whatever the density's tails, and particles that lag behind do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps.benchmarks import gauntlet_cases
from pgps.scouting import Rest, at_rest, unrest
from pgps.scouting.rest import Side, _stein_kernel

NUM = 1000


def rosenbrock_draws(rng: np.random.Generator, num: int) -> np.ndarray:
    first = 1 + rng.normal(size=(num, 1))
    return np.hstack([first, first**2 + rng.normal(size=(num, 7)) / np.sqrt(10)])


def seen(logdensity, draws: np.ndarray, log_weights: np.ndarray | None = None) -> Rest:
    scores = np.asarray(jax.vmap(jax.grad(logdensity))(jnp.asarray(draws, jnp.float32)), float)
    equal = np.zeros(len(draws)) if log_weights is None else log_weights
    return at_rest(draws, scores, equal, np.arange(len(draws)))


@pytest.mark.parametrize(
    ("logdensity", "draw"),
    [
        (gauntlet_cases.rosenbrock, lambda rng: rosenbrock_draws(rng, NUM)),
        (gauntlet_cases.student, lambda rng: rng.standard_t(2, (NUM, 5))),
        (lambda x: -jnp.sum(jnp.log1p(x**2)), lambda rng: rng.standard_t(1, (NUM, 5))),
        (gauntlet_cases.laplace, lambda rng: rng.laplace(size=(NUM, 10))),
        (gauntlet_cases.gumbel, lambda rng: rng.gumbel(size=(NUM, 10))),
        (lambda x: -0.5 * jnp.sum(x**2), lambda rng: rng.normal(size=(NUM, 1))),
    ],
    ids=["rosenbrock", "student", "cauchy", "laplace", "gumbel", "gaussian"],
)
def test_exact_draws_are_at_rest(logdensity, draw):
    for seed in range(4):
        rest = seen(logdensity, draw(np.random.default_rng(seed)))
        # The halves have about independent means, each found to be 0 within its error.
        assert abs(rest.standard_errors) < 4
        assert unrest(rest) == []


def test_a_lost_arm_is_seen():
    for seed in range(4):
        draws = rosenbrock_draws(np.random.default_rng(seed), 2 * NUM)
        rest = seen(gauntlet_cases.rosenbrock, draws[draws[:, 0] < 2][:NUM])
        assert rest.ratio > 0.2
        assert rest.standard_errors > 5
        [doubt] = unrest(rest)
        assert "do not balance" in doubt


def test_weights_count():
    """Draws of N(0, 1.5^2) with weights are at rest under N(0, 1), and without them they are not."""
    draws = 1.5 * np.random.default_rng(0).normal(size=(NUM, 2))
    log_weights = np.sum(-0.5 * draws**2 + 0.5 * (draws / 1.5) ** 2, axis=1)

    def gaussian(x):
        return -0.5 * jnp.sum(x**2)

    assert abs(seen(gaussian, draws, log_weights).standard_errors) < 4
    assert seen(gaussian, draws).standard_errors > 8


def test_the_kernel_is_a_sum_over_fields():
    """In one dimension the fields are w, sqrt(2) w u and w u^2, and g is their score times them plus their slope."""
    u, score = np.random.default_rng(1).normal(size=(2, 7))

    def g(field):
        field_of = lambda u: field(u) / (1 + u**2 / 16)  # noqa: E731
        return score * field_of(u) + np.asarray(jax.vmap(jax.grad(field_of))(jnp.asarray(u)))

    fields = (lambda u: 1.0 + 0 * u, lambda u: np.sqrt(2) * u, lambda u: u**2)
    expected = np.sum([np.outer(g(field), g(field)) for field in fields], axis=0)
    side = Side(jnp.asarray(u[:, None]), jnp.asarray(score[:, None]), jnp.ones(7))
    np.testing.assert_allclose(_stein_kernel(side, side), expected, rtol=1e-3, atol=1e-4)
    few = Side(*(array[:3] for array in side))
    np.testing.assert_allclose(_stein_kernel(few, side), expected[:3], rtol=1e-3, atol=1e-4)


def test_scores_of_any_size_are_looked_at():
    """What is found has no unit: not even those of a coordinate whose scores are as large as single precision goes."""
    draws = rosenbrock_draws(np.random.default_rng(5), 2 * NUM)
    draws = draws[draws[:, 0] < 2][:NUM]
    scores = np.asarray(jax.vmap(jax.grad(gauntlet_cases.rosenbrock))(jnp.asarray(draws, jnp.float32)), float)
    weights, families = np.zeros(len(draws)), np.arange(len(draws))
    found = at_rest(draws, scores, weights, families)
    assert unrest(found) != []
    np.testing.assert_allclose(at_rest(draws * 1e-14, scores * 1e14, weights, families), found, rtol=1e-2)


def test_a_constant_coordinate_is_left_out():
    draws = np.random.default_rng(0).normal(size=(NUM, 2)) * [1, 0]
    assert np.isfinite(seen(lambda x: -0.5 * jnp.sum(x**2), draws).ratio)


def test_particles_in_one_place_show_nothing():
    x = np.full((20, 2), 3.0, np.float32)
    assert at_rest(x, -x, np.zeros(20), np.arange(20)) == Rest(0.0, 0.0)


def test_an_island_without_weight_has_nothing_to_compare():
    x = np.random.default_rng(0).normal(size=(20, 2))
    log_weights = np.where(np.arange(20) < 10, 0.0, -np.inf)
    assert at_rest(x, -x, log_weights, np.arange(20)) == Rest(0.0, 0.0)
