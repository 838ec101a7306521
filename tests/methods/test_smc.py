"""Tempered SMC: the log evidence and its error over twenty seeds, against the truth and against BlackJAX."""

import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import pgps
from pgps.adjustments import HMC, MALA
from pgps.methods import TemperedSMC
from pgps.steppers import ConditionalESS, Fixed, Ladder
from pgps.targets import GaussianMixture

KEYS = jax.random.split(jax.random.key(11), 20)
LOG_Z = 3.7
POWERS = tuple((k / 20) ** 3 for k in range(1, 21))


class Scaled(eqx.Module):
    """A mixture times exp(LOG_Z), so that its log evidence is not 0."""

    mixture: GaussianMixture

    def __call__(self, x: Array) -> Array:
        return self.mixture(x) + LOG_Z


def problem(dim: int) -> tuple[Scaled, pgps.Normal]:
    """Two modes in 2-D, three in 8-D, with unequal weights and scales."""
    if dim == 2:
        weights, means, scales = [0.3, 0.7], [[-1.5, 0.0], [1.5, 0.5]], [0.4, 0.6]
    else:
        weights, scales = [0.2, 0.3, 0.5], [0.5, 0.6, 0.7]
        means = np.array([[1.0] * 8, [-1.0] * 8, [1.0, -1.0] * 4]) * 0.6
    mixture = GaussianMixture(jnp.asarray(weights), jnp.asarray(means, float), jnp.asarray(scales))
    return Scaled(mixture), pgps.Normal(0.0, 2.0 if dim == 2 else 1.2, shape=(dim,))


def relative_evidence(results: Sequence[pgps.Result]) -> np.ndarray:
    """Z / Z_true of each run: it is unbiased, ln Z is not."""
    assert all(result.status == pgps.Status.COMPLETED for result in results)
    return np.exp(np.array([result.log_evidence for result in results], float) - LOG_Z)


METHODS = {
    "2d-adaptive-mala": (2, TemperedSMC(ConditionalESS(0.9), MALA(0.1, 5))),
    "8d-ladder-hmc": (8, TemperedSMC(Ladder(POWERS), HMC(0.2, 4, 2), resample_below=0.95)),
}


@functools.cache
def runs_of(name: str) -> list[pgps.Result]:
    """Twenty seeds."""
    dim, method = METHODS[name]
    target, initial = problem(dim)
    return pgps.sample_many(target, initial, keys=KEYS, num_particles=1000, method=method)


@pytest.fixture(scope="module")
def resampled() -> list[pgps.Result]:
    """Twenty seeds of a run that resamples at every step, as BlackJAX does."""
    target, initial = problem(2)
    method = TemperedSMC(ConditionalESS(0.7), MALA(0.1, 5, None), resample_below=1.0)
    return pgps.sample_many(target, initial, keys=KEYS, num_particles=1000, method=method)


@pytest.mark.parametrize("name", METHODS)
def test_evidence_and_its_error(name: str):
    target, _ = problem(METHODS[name][0])
    results = runs_of(name)
    relative = relative_evidence(results)
    spread = relative.std(ddof=1)
    assert abs(relative.mean() - 1) < 3 * spread / np.sqrt(20)
    # The reported error is that of a single run; the spread itself is known to 1 / sqrt(2 * 19) = 16 %.
    reported = np.mean(np.array([result.log_evidence_error for result in results], float))
    assert 0.6 < reported / spread < 2
    # The heaviest mode's mass, from the weighted particles, over the seeds.
    heaviest = int(np.argmax(target.mixture.weights))
    nearest = eqx.filter_jit(target.mixture.nearest_mode)
    masses = [np.exp(result.log_weights) @ (np.asarray(nearest(result.particles)) == heaviest) for result in results]
    draws = target.mixture.sample(jax.random.key(0), 200_000)
    expected = float(np.mean(np.asarray(target.mixture.nearest_mode(draws)) == heaviest))
    assert abs(np.mean(masses) - expected) < 4 * np.std(masses, ddof=1) / np.sqrt(20) + 4 * np.sqrt(0.25 / 200_000)


def test_a_ladder_is_visited_and_a_whole_run_is_traced():
    result = runs_of("8d-ladder-hmc")[0]
    np.testing.assert_allclose(result.trace["t"], POWERS, rtol=1e-5)
    assert result.trace["log_evidence"][-1] == pytest.approx(result.log_evidence)
    assert result.ess is not None
    # Equal weights, after a resampling, have it to single precision.
    assert 0 < result.ess <= 1000
    assert np.sum(np.exp(np.asarray(result.log_weights))) == pytest.approx(1, rel=1e-4)
    assert np.all(np.diff(result.trace["num_ancestors"]) <= 0)
    assert 0 < result.trace["num_ancestors"][-1] < 1000
    for word in ("TemperedSMC", "log evidence: ", "+-"):
        assert word in result.summary()


def test_the_adaptive_ladder_keeps_its_share(resampled: list[pgps.Result]):
    """With resampling at every step weights are equal before it, so that each step's ESS is the target."""
    for result in resampled:
        np.testing.assert_allclose(result.trace["ess"][:-1] / 1000, 0.7, atol=1e-3)
        assert result.trace["ess"][-1] >= 699


def test_importance_sampling_is_one_step():
    """A ladder of one rung weighs particles of p0: ln Z = ln mean_i p1(x_i) / p0(x_i), and particles move after it."""
    target, initial = problem(2)
    method = TemperedSMC(Fixed(1.0), MALA(1e-6, 1, None), resample_below=0.0)
    result = pgps.sample(target, initial, key=KEYS[0], num_particles=1000, method=method)
    key_init = jax.random.split(KEYS[0])[0]
    x = jax.vmap(initial.sample)(jax.random.split(key_init, 1000))
    log_ratios = np.asarray(jax.vmap(target)(x) - jax.vmap(initial.logdensity)(x), float)
    w = np.exp(log_ratios)
    assert result.log_evidence == pytest.approx(np.log(w.mean()), abs=1e-4)
    assert result.ess == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-3)
    np.testing.assert_allclose(np.exp(result.log_weights), w / w.sum(), rtol=1e-3, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*ended outside the target's support:pgps.PGPSWarning")
def test_a_target_with_less_support_than_the_initial_law():
    """Half of a Gaussian: Z = 1/2, and no particle with weight is outside."""

    def half(x: Array) -> Array:
        return jnp.where(x[0] > 0, jnp.sum(jax.scipy.stats.norm.logpdf(x)), -jnp.inf)

    results = pgps.sample_many(half, pgps.Normal(shape=(2,)), keys=KEYS, num_particles=500, method=TemperedSMC())
    relative = 2 * np.exp(np.array([result.log_evidence for result in results], float))
    # The share of 500 particles that begin inside has a relative error of 1 / sqrt(500).
    assert abs(np.mean(relative) - 1) < 4 / np.sqrt(500 * 20)
    for result in results:
        assert np.all(np.asarray(result.particles)[np.asarray(result.log_weights) > -np.inf, 0] > 0)


def test_blackjax_agrees(resampled: list[pgps.Result]):
    """Adaptive tempered SMC of another library: same target, particles, share of the ESS and moves."""
    blackjax = pytest.importorskip("blackjax")
    target, initial = problem(2)
    algorithm = blackjax.adaptive_tempered_smc(
        initial.logdensity,
        lambda x: target(x) - initial.logdensity(x),
        blackjax.mala.build_kernel(),
        blackjax.mala.init,
        blackjax.smc.extend_params({"step_size": jnp.asarray(0.1)}),
        blackjax.smc.resampling.systematic,
        0.7,
        num_mcmc_steps=5,
    )

    @jax.jit
    def theirs(key: Array) -> Array:
        key_init, key = jax.random.split(key)
        state = algorithm.init(jax.vmap(initial.sample)(jax.random.split(key_init, 1000)))

        def step(carry: tuple) -> tuple:
            key, state, log_evidence = carry
            key, key_step = jax.random.split(key)
            state, info = algorithm.step(key_step, state)
            return key, state, log_evidence + info.log_likelihood_increment

        carry = (key, state, jnp.zeros(()))
        return jax.lax.while_loop(lambda carry: carry[1].tempering_param < 1, step, carry)[2]

    other = np.exp(np.array([theirs(key) for key in KEYS], float) - LOG_Z)
    ours = relative_evidence(resampled)
    error = np.sqrt((ours.var(ddof=1) + other.var(ddof=1)) / 20)
    assert abs(ours.mean() - other.mean()) < 3 * error
    assert abs(other.mean() - 1) < 3 * other.std(ddof=1) / np.sqrt(20)
    # And so do their spreads, each known to 16 %.
    assert 0.45 < ours.std() / other.std() < 2.2
