"""Algorithm 2: its formula, its stationary law, when it acts, and what it costs."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import pgps
from helpers import (
    ADJUSTMENTS,
    as_arrays,
    assert_close,
    assert_moments,
    normal_array,
    over,
    path_population,
    vector_problem,
)
from pgps import paths
from pgps.adjustments import HMC, MALA, AbstractAdjustment, Adjustment, Langevin, NoAdjustment, langevin_step
from pgps.density import Population, Problem

PATH = paths.LogWeightedShrinkage(0.3, 0.6)
KEY = jax.random.key(8)


@eqx.filter_jit
def _adjust(
    adjustment: AbstractAdjustment, key: Array, before: Array, t: Array, population: Population, problem: Problem
) -> tuple[Population, Adjustment]:
    evaluate = lambda x, key=None: paths.evaluate(PATH, t, x, problem, key)  # noqa: E731
    memory = adjustment.init(population)
    population, _, report = adjustment.adjust(key, before, t, population, memory, evaluate)
    return population, report


def adjust(
    adjustment: AbstractAdjustment, before: float, t: float, population: Population, problem: Problem, key: Array = KEY
) -> tuple[Population, Adjustment]:
    dtype = population.particles.dtype
    return _adjust(as_arrays(adjustment), key, jnp.asarray(before, dtype), jnp.asarray(t, dtype), population, problem)


@over("adjustment", ADJUSTMENTS)
@pytest.mark.parametrize("t", [0.5, 1.0])
@pytest.mark.usefixtures("x64")
def test_an_adjusted_population_is_evaluated_at_its_particles(adjustment: AbstractAdjustment, t: float):
    problem = vector_problem()
    population, report = adjust(adjustment, t - 0.1, t, path_population(problem, t, PATH), problem)
    assert_close(population, path_population(problem, t, PATH, population.particles))
    per_step = getattr(adjustment, "num_leapfrog", 1)
    assert report.evaluations.gradients == report.num_steps * per_step
    assert report.evaluations.values == 0


@over("adjustment", ADJUSTMENTS)
@pytest.mark.usefixtures("x64")
def test_the_same_key_gives_the_same_particles(adjustment: AbstractAdjustment):
    problem = vector_problem()
    population = path_population(problem, 1.0, PATH)
    first, again = (adjust(adjustment, 0.9, 1.0, population, problem)[0] for _ in range(2))
    other, report = adjust(adjustment, 0.9, 1.0, population, problem, jax.random.key(9))
    np.testing.assert_array_equal(first.particles, again.particles)
    assert np.any(first.particles != other.particles) == (int(report.num_steps) > 0)


@pytest.mark.usefixtures("x64")
def test_one_langevin_step():
    x, score, delta = normal_array(5, 3), normal_array(5, 3, seed=1), 0.03
    noise = np.asarray(jax.random.normal(KEY, (5, 3), jnp.float64))
    expected = np.asarray(x) + delta * np.asarray(score) + np.sqrt(2 * delta) * noise
    assert_close(langevin_step(KEY, x, score, delta), jnp.asarray(expected))
    assert_close(langevin_step(KEY, x, score, jnp.asarray(delta)), jnp.asarray(expected))


@pytest.mark.usefixtures("x64")
def test_algorithm_2():
    problem, t, delta = vector_problem(), 0.5, 0.03
    score = jax.jit(jax.vmap(jax.grad(lambda x: PATH.logdensity(jnp.asarray(t), x, problem))))
    start = path_population(problem, t, PATH)
    expected = start.particles
    for m in range(4):
        adjusted, report = adjust(Langevin(delta, m), 0.4, t, start, problem)
        assert report.num_steps == m
        assert_close(adjusted.particles, expected)
        noise = jax.random.normal(jax.random.fold_in(KEY, m), expected.shape, expected.dtype)
        expected = expected + delta * score(expected) + np.sqrt(2 * delta) * noise


def test_dead_particles_wander_without_a_slope():
    problem = vector_problem(lambda x: jnp.where(jnp.all(x > -5.0), -jnp.sum(x**2), -jnp.inf))
    population = path_population(problem, 0.5, PATH, jnp.full((4, 3), -30.0))
    moved, _ = adjust(Langevin(0.01, 1), 0.4, 0.5, population, problem)
    noise = jax.random.normal(jax.random.fold_in(KEY, 0), (4, 3))
    assert_close(moved.particles, population.particles + jnp.sqrt(0.02) * noise, 1e-5)
    assert np.all(np.isfinite(moved.particles))


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_langevin_is_stationary_where_it_should_be(share: float):
    """On N(m, s^2) steps of h settle at N(m, s^2 / (1 - h / (2 s^2))): x - m <- (1 - h/s^2) (x - m) + sqrt(2h) xi."""
    mean, scale = jnp.array([1.0, -2.0]), jnp.array([0.5, 0.7])
    problem = Problem.of(pgps.Normal(mean, scale).logdensity, pgps.Normal(0.0, 1.0, shape=(2,)))
    step_size = share * 0.25
    variance = np.asarray(scale) ** 2 / (1 - step_size / (2 * np.asarray(scale) ** 2))
    # (1 - 0.1 * 0.25 / 0.49)^200 = 3e-5 is left of the start, far below the errors of 20,000 particles.
    start = path_population(problem, 1.0, PATH, normal_array(20_000, 2))
    population, report = adjust(Langevin(step_size, 200), 0.9, 1.0, start, problem)
    assert report.num_steps == 200
    # Particles are independent: within four standard errors, each from the draws themselves. At h = s^2 the
    # stationary variance is twice the target's, so a formula that is off by little does not pass.
    assert_moments(population.particles, mean, variance)


@pytest.mark.parametrize(
    ("adjustment", "before", "t", "expected"),
    [
        (Langevin(num_steps=7), 0.3, 0.31, 7),
        (Langevin(num_steps=7), 0.9, 1.0, 7),
        (Langevin(num_steps=7, every=0.1), 0.3, 0.39, 0),
        (Langevin(num_steps=7, every=0.1), 0.3, 0.4, 7),
        (Langevin(num_steps=7, every=0.1), 0.38, 0.41, 7),
        (Langevin(num_steps=7, every=0.1), 0.38, 0.65, 7),
        (Langevin(num_steps=7, final_steps=5), 0.3, 0.31, 7),
        (Langevin(num_steps=7, final_steps=5), 0.9, 0.9999, 7),
        (Langevin(num_steps=7, final_steps=5), 0.9, 1.0, 12),
        (Langevin(num_steps=0, final_steps=5), 0.5, 0.6, 0),
        (Langevin(num_steps=0, final_steps=5), 0.9, 1.0, 5),
        (Langevin(num_steps=7, every=0.3, final_steps=5), 0.95, 1.0, 5),
        (NoAdjustment(), 0.9, 1.0, 0),
    ],
)
@pytest.mark.usefixtures("x64")
def test_steps_that_are_due(adjustment: AbstractAdjustment, before: float, t: float, expected: int):
    problem = vector_problem()
    start = path_population(problem, t, PATH)
    population, report = adjust(adjustment, before, t, start, problem)
    assert report.num_steps == expected
    assert bool(np.any(population.particles != start.particles)) == (expected > 0)


def test_published_schedule_of_adjustments():
    """The paper's BNN runs: 50 flow steps, 300 Langevin steps per 0.1 of t, 1,000 at the end."""
    method = pgps.methods.PGPS(
        path=paths.Geometric(),
        field=pgps.fields.Zero(),
        trainer=pgps.trainers.NoTraining(),
        stepper=pgps.steppers.ParticleStep(psi=1e5, max_dt=0.02),
        adjustment=Langevin(1e-2, 300, every=0.1, final_steps=1000),
    )
    law = pgps.Normal(shape=(1,))
    result = pgps.sample(law.logdensity, law, key=KEY, num_particles=2, method=method)
    steps = result.trace["adjustment_steps"]
    assert len(steps) == 50
    np.testing.assert_array_equal(np.flatnonzero(steps), np.arange(4, 50, 5))
    np.testing.assert_array_equal(steps[4:45:5], 300)
    assert steps[-1] == 300 + 1000
    assert steps.sum() == 10 * 300 + 1000
    assert result.num_evaluations.gradients == 2 * (1 + 50 + 4000)


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Langevin(step_size=0.0), ValueError, "step_size must be positive, got 0.0; "),
        (lambda: Langevin(step_size=np.nan), ValueError, "step_size must be finite, got nan; "),
        (lambda: Langevin(num_steps=-1), ValueError, "num_steps must be at least 0, got -1; "),
        (lambda: Langevin(num_steps=1.0), TypeError, "num_steps must be a whole number, got 1.0; "),
        (lambda: Langevin(final_steps=-2), ValueError, "final_steps must be at least 0, got -2; "),
        (lambda: Langevin(every=0.0), ValueError, r"every must lie in \(0, 1\], got 0.0; "),
        (lambda: Langevin(every=2), ValueError, r"every must lie in \(0, 1\], got 2; "),
        *[
            case
            for kind in (MALA, HMC)
            for case in [
                (partial(kind, step_size=0.0), ValueError, "step_size must be positive, got 0.0; "),
                (partial(kind, step_size=-1.0), ValueError, "step_size must be positive, got -1.0; "),
                (partial(kind, step_size=np.nan), ValueError, "step_size must be finite, got nan; "),
                (partial(kind, num_steps=0), ValueError, "num_steps must be at least 1, got 0; "),
                (
                    partial(kind, target_acceptance=0.0),
                    ValueError,
                    r"target_acceptance must lie in \(0, 1\), got 0.0; ",
                ),
                (
                    partial(kind, target_acceptance=1.0),
                    ValueError,
                    r"target_acceptance must lie in \(0, 1\), got 1.0; ",
                ),
            ]
        ],
        (lambda: HMC(num_leapfrog=0), ValueError, "num_leapfrog must be at least 1, got 0; "),
    ],
)
def test_bad_arguments(make: Callable[[], object], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()
