"""BlackJAX both ways: a method runs in its loop as it does in ours, and its kernels leave p_t as it is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from helpers import assert_close, assert_covariance, normal_array, vector_problem
from pgps.adapters.blackjax import Kernel, _logdensity, as_sampling_algorithm
from pgps.adjustments.base import Adjustment
from pgps.density import Population, Problem, evaluate_target

blackjax: Any = pytest.importorskip("blackjax")

KEY = jax.random.key(8)
MEAN, SCALE = jnp.array([1.0, -2.0]), jnp.array([0.5, 1.5])


def logdensity(x: dict) -> jax.Array:
    """An unnormalised Gaussian."""
    return -0.5 * jnp.sum(((x["x"] - MEAN) / SCALE) ** 2)


LAW = pgps.Normal({"x": jnp.zeros(2)}, 2.0)


def test_a_method_runs_in_blackjaxs_loop():
    algorithm = as_sampling_algorithm(pgps.methods.TemperedSMC(), logdensity, LAW)
    assert isinstance(algorithm, blackjax.SamplingAlgorithm)
    particles = jax.vmap(LAW.sample)(jax.random.split(KEY, 500))
    start = algorithm.init(particles, KEY)
    assert_close(start.particles, particles)
    assert start.t == 0
    # More steps than are needed: those after t = 1 change nothing.
    state, (times, done) = blackjax.util.run_inference_algorithm(
        KEY, algorithm, 30, initial_state=start, transform=lambda state, info: (state.t, info.is_done)
    )
    assert state.t == 1
    assert np.all(np.diff(times) >= 0)
    assert not done[0]
    assert done[-1]
    weights = state.state.weights
    truth = np.log(2 * np.pi * 0.5 * 1.5)
    assert abs(weights.log_evidence - truth) < 4 * weights.log_evidence_error
    shares = jax.nn.softmax(state.log_weights)
    assert np.all(np.abs(shares @ state.particles["x"] - MEAN) < 4 * SCALE / np.sqrt(weights.num_ancestors))


def test_the_density_of_a_kernel_has_the_score_as_its_gradient():
    problem = vector_problem()
    evaluate = lambda x: evaluate_target(x, problem)  # noqa: E731
    x = normal_array(4, 3)
    values, scores = jax.vmap(jax.value_and_grad(lambda x: _logdensity(x, evaluate)))(x)
    assert_close((values, scores), jax.vmap(jax.value_and_grad(problem.log_target))(x), 1e-6)


def test_a_kernel_leaves_the_density_as_it_is():
    problem = Problem.of(lambda x: logdensity({"x": x}), pgps.Normal(0.0, 1.0, shape=(2,)))
    kernel = Kernel(lambda logdensity_fn: blackjax.hmc(logdensity_fn, 0.4, jnp.ones(2), 3), num_steps=2)
    draws = MEAN + SCALE * normal_array(2000, 2)
    population = evaluate_target(draws, problem)

    @jax.jit
    def adjust(population: Population) -> tuple[Population, Any, Adjustment]:
        t = jnp.asarray(0.0), jnp.asarray(1.0)
        return kernel.adjust(KEY, *t, population, None, lambda x, key=None: evaluate_target(x, problem, key))

    moved, _, report = adjust(population)
    assert_covariance(moved.particles, MEAN, np.diag(SCALE**2))
    assert 0.5 < report.acceptance <= 1
    assert report.covered > 0.1
    # Two moves of three leapfrog steps, and one gradient at either end.
    assert report.evaluations.gradients == 8
    assert_close(moved, evaluate_target(moved.particles, problem), 1e-5)
    # It may move weighted particles; a kernel that does not leave p_t as it is may not.
    assert pgps.methods.TemperedSMC(moves=kernel).moves is kernel
    with pytest.raises(TypeError, match="moves must be adjustments.MALA or adjustments.HMC"):
        pgps.methods.TemperedSMC(moves=pgps.adjustments.Langevin())


def test_misuse_is_named():
    with pytest.raises(TypeError, match="method must be one of pgps.exact"):
        as_sampling_algorithm("smc", logdensity, LAW)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="algorithm must be a function"):
        Kernel(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        Kernel(blackjax.hmc, 0)
