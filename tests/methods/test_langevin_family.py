"""Langevin dynamics, with and without Metropolis's rule, and annealed: stationary laws, acceptance and temperatures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy.linalg import solve_discrete_lyapunov

import pgps
from helpers import assert_covariance, bumpy
from pgps.density import Problem
from pgps.methods import MALA, AnnealedLangevin, Langevin

KEY = jax.random.key(5)
MEAN, COVARIANCE = np.array([1.0, -0.5]), np.array([[1.0, 0.6], [0.6, 0.5]])
PRECISION = np.linalg.inv(COVARIANCE)
STANDARD = pgps.Normal(shape=(2,))


def correlated(x: Array) -> Array:
    z = x - jnp.asarray(MEAN, x.dtype)
    return -0.5 * z @ jnp.asarray(PRECISION, x.dtype) @ z


def test_unadjusted_langevin_settles_where_its_recursion_does():
    """x - m <- A (x - m) + sqrt(2h) xi, A = I - h P, settles at the covariance C = A C A' + 2h I."""
    step_size = 0.15
    A = np.eye(2) - step_size * PRECISION
    covariance = solve_discrete_lyapunov(A, 2 * step_size * np.eye(2))
    # The least eigenvalue of P is 0.71: of the start (1 - 0.15 * 0.71)^400 = 3e-20 is left.
    method = Langevin(step_size, 400)
    result = pgps.sample(correlated, STANDARD, key=KEY, num_particles=8000, method=method)
    assert_covariance(result.particles, MEAN, covariance)
    # Had it been the target's, the test would see it.
    with pytest.raises(AssertionError):
        assert_covariance(result.particles, MEAN, COVARIANCE)


def acceptance_at_stationarity(step_size: float, num: int) -> np.ndarray:
    """Acceptance probabilities of MALA from exact draws, by NumPy."""
    rng = np.random.default_rng(1)
    x = rng.multivariate_normal(MEAN, COVARIANCE, num)
    score = lambda x: -(x - MEAN) @ PRECISION  # noqa: E731
    log_p = lambda x: 0.5 * np.sum(score(x) * (x - MEAN), axis=1)  # noqa: E731
    new = x + step_size * score(x) + np.sqrt(2 * step_size) * rng.standard_normal(x.shape)
    log_q = lambda to, source: -np.sum((to - source - step_size * score(source)) ** 2, axis=1) / 4 / step_size  # noqa: E731
    return np.exp(np.minimum(0, log_p(new) - log_p(x) + log_q(x, new) - log_q(new, x)))


def test_mala_settles_at_the_target_with_the_acceptance_rate_it_should_have():
    method = MALA(0.17, 400)
    result = pgps.sample(correlated, STANDARD, key=KEY, num_particles=8000, method=method)
    assert_covariance(result.particles, MEAN, COVARIANCE)
    probability = acceptance_at_stationarity(0.17, 400_000)
    assert 0.3 < probability.mean() < 0.8
    # One step's mean over independent chains; that of a hundred steps has at most its error.
    error = probability.std() * np.sqrt(1 / 8000 + 1 / 400_000)
    assert abs(result.trace["acceptance"][-100:].mean() - probability.mean()) < 4 * error
    np.testing.assert_allclose(result.trace["step_size"], 0.17, rtol=1e-5)
    assert result.num_evaluations.gradients == 8000 * 401


@pytest.mark.parametrize(("target", "first"), [(0.574, 1e-3), (0.8, 5.0)])
def test_mala_is_adapted_to_its_target(target: float, first: float):
    method = MALA(first, 400, target)
    result = pgps.sample(correlated, STANDARD, key=KEY, num_particles=8000, method=method)
    assert result.trace["acceptance"][-100:].mean() == pytest.approx(target, abs=0.01)
    # The adapted step size has the same rate under the target itself.
    probability = acceptance_at_stationarity(float(result.trace["step_size"][-1]), 100_000)
    assert probability.mean() == pytest.approx(target, abs=0.015)
    assert_covariance(result.particles, MEAN, COVARIANCE)


def test_mala_doubts_chains_that_stand_still_or_creep():
    for step_size, words in ((50.0, "proposals were accepted; take smaller"), (1e-5, "creep; take larger")):
        with pytest.warns(pgps.PGPSWarning, match=words):
            pgps.sample(correlated, STANDARD, key=KEY, num_particles=100, method=MALA(step_size, 40))


def test_mala_refuses_nan_and_says_so():
    def hole(x: Array) -> Array:
        return jnp.where(x[0] > -3.0, correlated(x), jnp.nan)

    start = pgps.Normal(1.0, 0.5, shape=(2,))
    with pytest.warns(pgps.PGPSWarning, match="proposals were refused since the log-density"):
        result = pgps.sample(hole, start, key=KEY, num_particles=2000, method=MALA(0.3, 40))
    assert result.status == pgps.Status.COMPLETED
    assert result.trace["faults"].sum() > 0
    assert np.all(np.asarray(result.particles)[:, 0] > -3.0)


class TestAnnealedLangevin:
    """x <- x + delta grad ln p1(x) + sqrt(2 delta T) xi, with T on a ladder."""

    def test_temperatures_are_a_geometric_ladder(self):
        method = AnnealedLangevin(1e-2, 20, 8.0, 4)
        result = pgps.sample(correlated, STANDARD, key=KEY, num_particles=4, method=method)
        np.testing.assert_allclose(result.trace["temperature"], np.repeat([8.0, 4.0, 2.0, 1.0], 5), rtol=1e-6)

    @pytest.mark.parametrize(("num_steps", "num_temperatures"), [(7, 3), (10, 10), (100, 7)])
    def test_steps_are_shared_as_equally_as_can_be(self, num_steps: int, num_temperatures: int):
        method = AnnealedLangevin(1e-2, num_steps, 5.0, num_temperatures)
        result = pgps.sample(correlated, STANDARD, key=KEY, num_particles=4, method=method)
        temperatures, counts = np.unique(result.trace["temperature"], return_counts=True)
        assert len(temperatures) == num_temperatures
        assert np.ptp(counts) <= 1
        assert (temperatures[0], temperatures[-1]) == (1.0, 5.0)
        assert np.all(np.diff(result.trace["temperature"]) <= 0)

    def test_steps_by_the_formula(self, x64: None):
        initial = pgps.Normal(shape=(2,))
        key_init, key_steps = jax.random.split(KEY)
        x = Problem.of(bumpy, initial).draw(key_init, 5)
        for k, temperature in enumerate([9.0, 9.0, 3.0, 3.0, 1.0, 1.0]):
            xi = jax.random.normal(jax.random.fold_in(key_steps, k), x.shape, x.dtype)
            x = x + 0.04 * jax.vmap(jax.grad(bumpy))(x) + np.sqrt(2 * 0.04 * temperature) * xi
        result = pgps.sample(bumpy, initial, key=KEY, num_particles=5, method=AnnealedLangevin(0.04, 6, 9.0, 3))
        np.testing.assert_allclose(result.particles, x, rtol=1e-10)
        assert result.num_evaluations.gradients == 5 * 7

    def test_spread_at_each_temperature(self):
        """On N(0, s^2) steps at T settle at the variance T s^2 / (1 - delta / (2 s^2))."""
        scale, delta, num = 0.7, 0.1, 20_000
        law = pgps.Normal(0.0, scale, shape=(1,))
        result = pgps.sample(
            law.logdensity,
            pgps.Normal(shape=(1,)),
            key=KEY,
            num_particles=num,
            method=AnnealedLangevin(delta, 200, 9.0, 2),
            observe=lambda x: {"variance": jnp.mean(x**2)},
        )
        # Each temperature has 100 steps, and (1 - 0.1 / 0.49)^200 = 1e-20 is left of the one before.
        for k, temperature in ((99, 9.0), (199, 1.0)):
            variance = temperature * scale**2 / (1 - delta / (2 * scale**2))
            assert abs(result.trace["variance"][k] - variance) < 4 * variance * np.sqrt(2 / num)
