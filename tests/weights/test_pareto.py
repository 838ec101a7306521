"""Pareto k: against a transcription in NumPy, SciPy's maximum likelihood, tails of known shape, and at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pgps import weights

pareto_k = jax.jit(weights.pareto_k)


def tail_excesses(log_weights: np.ndarray) -> np.ndarray:
    """The largest weights less the next one, in rising order."""
    weights, num = np.sort(np.exp(log_weights - log_weights.max())), len(log_weights)
    num_tail = int(np.ceil(min(num / 5, 3 * np.sqrt(num))))
    return weights[-num_tail:] - weights[-num_tail - 1]


def reference_k(log_weights: np.ndarray) -> float:
    """Appendix C of Vehtari et al., term by term."""
    x = tail_excesses(log_weights)
    n, m = len(x), 30 + int(np.sqrt(len(x)))
    thetas = [1 / x[-1] + (1 - np.sqrt(m / (j - 0.5))) / (3 * x[int(n / 4 + 0.5) - 1]) for j in range(1, m + 1)]
    shapes = [np.mean(np.log1p(-theta * x)) for theta in thetas]
    scores = np.array([n * (np.log(-theta / k) - k - 1) for theta, k in zip(thetas, shapes, strict=True)])
    posterior = [1 / np.sum(np.exp(scores - score)) for score in scores]
    theta = np.dot(posterior, thetas)
    return (n * np.mean(np.log1p(-theta * x)) + 10 * 0.5) / (n + 10)


def log_weights_of_shape(k: float, *shape: int, seed: int = 0) -> np.ndarray:
    return k * np.random.default_rng(seed).exponential(size=shape)


LOG_WEIGHTS = {
    "pareto-0.3": log_weights_of_shape(0.3, 1000),
    "pareto-1": log_weights_of_shape(1.0, 1000),
    "pareto-3": log_weights_of_shape(3.0, 400),
    "normal": np.random.default_rng(0).standard_normal(1000),
    "bounded": np.log(np.random.default_rng(0).random(1000)),
    "few": log_weights_of_shape(0.5, 30),
    "shifted": log_weights_of_shape(0.5, 500) - 1e3,
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("log_weights", LOG_WEIGHTS.values(), ids=LOG_WEIGHTS)
def test_agrees_with_the_transcription(log_weights: np.ndarray):
    with np.errstate(over="ignore"):
        expected = reference_k(log_weights)
    assert float(pareto_k(jnp.asarray(log_weights))) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("log_weights", LOG_WEIGHTS.values(), ids=LOG_WEIGHTS)
def test_single_precision(log_weights: np.ndarray):
    rounded = np.asarray(log_weights, np.float32)
    with np.errstate(over="ignore"):
        expected = reference_k(rounded.astype(float))
    k = pareto_k(jnp.asarray(rounded))
    assert k.dtype == jnp.float32
    assert float(k) == pytest.approx(expected, abs=1e-3)


def test_is_near_maximum_likelihood():
    log_weights = log_weights_of_shape(0.7, 100_000)
    fitted = stats.genpareto.fit(tail_excesses(log_weights), floc=0)[0]
    # Two efficient estimates of one sample differ by a fraction of their standard error, (1 + k) / sqrt(M) = 0.055.
    assert float(pareto_k(jnp.asarray(log_weights))) == pytest.approx(fitted, abs=0.2 * 0.055)


@pytest.mark.parametrize("k", [0.3, 0.5, 0.7, 1.0])
def test_recovers_known_shapes(k: float):
    """exp(k E) with E exponential is Pareto of shape k. One fit has the standard error (1 + k) / sqrt(M)."""
    num_tail, repeats = 300, 100
    estimates = jax.jit(jax.vmap(pareto_k))(jnp.asarray(log_weights_of_shape(k, repeats, 10_000)))
    expected = (num_tail * k + 5) / (num_tail + 10)
    error = (1 + k) / np.sqrt(num_tail)
    assert abs(float(jnp.mean(estimates)) - expected) < 4 * error / np.sqrt(repeats)
    assert float(jnp.std(estimates)) == pytest.approx(error, rel=4 / np.sqrt(2 * repeats))


@pytest.mark.parametrize("num", [10, 100, 5000])
def test_equal_weights_raise_no_alarm(num: int):
    for value in (0.0, -1e4, -np.log(num)):
        assert pareto_k(jnp.full(num, value)) == -jnp.inf
    # What rounding leaves of equal weights has no tail either.
    noise = 1e-6 * np.random.default_rng(0).standard_normal(num)
    assert pareto_k(jnp.asarray(noise, jnp.float32)) == -jnp.inf
    half = jnp.where(jnp.arange(num) % 2 == 0, 0.0, -jnp.inf)
    assert pareto_k(half) == -jnp.inf


def test_one_particle_with_all_the_weight_raises_an_alarm():
    for rest in (-jnp.inf, -200.0, -1e30):
        assert pareto_k(jnp.full(1000, rest).at[7].set(0.0)) == jnp.inf
    assert pareto_k(jnp.zeros(1)) == jnp.inf


def test_weights_of_zero_count_as_particles():
    log_weights = log_weights_of_shape(0.5, 1000)
    dead = np.where(np.argsort(np.argsort(log_weights)) < 500, -np.inf, log_weights)
    assert float(pareto_k(jnp.asarray(dead))) == float(pareto_k(jnp.asarray(log_weights)))


def test_never_nan():
    rng = np.random.default_rng(0)
    for num in (1, 2, 21, 26, 1000):
        for scale in (0.0, 1e-8, 1e-3, 1.0, 30.0, 1e4, 1e30):
            for share_of_zeros in (0.0, 0.5, 0.95, 1.0):
                log_weights = scale * rng.standard_normal(num)
                log_weights[rng.random(num) < share_of_zeros] = -np.inf
                rounded = np.round(log_weights, 1)
                for values in (log_weights, rounded):
                    assert not np.isnan(pareto_k(jnp.asarray(values, jnp.float32))), (num, scale, share_of_zeros)
    assert pareto_k(jnp.full(100, jnp.nan)) == jnp.inf
