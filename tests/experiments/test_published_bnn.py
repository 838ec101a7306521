"""The released code's likelihood and samplers, flaw by flaw, against plain NumPy and plain loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy import special

from helpers import normal_array
from pgps.experiments import published_bnn
from pgps.experiments.classify import Sizes
from pgps.experiments.published_bnn import Flock, Posterior, call, log_likelihood
from pgps.methods.svgd import median_bandwidth

HIDDEN, CLASSES = 2, 3


def posterior(num_rows: int, prior_factor: float = 1.0) -> Posterior:
    labels = jnp.arange(num_rows) % CLASSES
    return Posterior(normal_array(num_rows, 4, seed=3), labels, 0.5, prior_factor, CLASSES, HIDDEN)


def probabilities(x: np.ndarray, features: np.ndarray) -> np.ndarray:
    W1, b1, W2, b2 = np.split(np.asarray(x), np.cumsum([4 * HIDDEN, HIDDEN, HIDDEN * CLASSES]))
    hidden = special.expit(features @ W1.reshape(4, HIDDEN) + b1)
    return special.softmax(hidden @ W2.reshape(HIDDEN, CLASSES) + b2, axis=1)


@pytest.mark.usefixtures("x64")
def test_a_softmax_is_applied_twice():
    target = posterior(9)
    x, rows = normal_array(target.dim), np.array([0, 4, 4, 8])
    features, labels = np.asarray(target.features)[rows], np.asarray(target.labels)[rows]
    p = probabilities(np.asarray(x), features)
    twice = special.log_softmax(p, axis=1)[np.arange(4), labels].sum()
    assert log_likelihood(target, x, jnp.asarray(rows)) == pytest.approx(float(twice), rel=1e-12)
    assert abs(twice - np.log(p[np.arange(4), labels]).sum()) > 0.1
    particles = normal_array(5, target.dim)
    mean = np.mean([probabilities(particle, features) for particle in np.asarray(particles)], axis=0)
    np.testing.assert_allclose(published_bnn.predict(target, particles, features), mean, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_gradients_are_never_cleared():
    """The k-th call returns the sum of k gradients, wherever particles were meanwhile."""
    target = posterior(20)
    gradient = jax.jit(jax.vmap(jax.grad(lambda x: log_likelihood(target, x, jnp.arange(20)))))
    call_once = jax.jit(partial(call, target))
    places = [normal_array(3, target.dim, seed=k) for k in range(3)]
    so_far, expected = jnp.zeros((3, target.dim)), np.zeros((3, target.dim))
    for k, x in enumerate(places):
        called = call_once(jax.random.key(k), x, so_far)
        expected = expected + gradient(x)
        np.testing.assert_allclose(called.gradients, expected, rtol=1e-10, atol=1e-12)
        so_far = called.gradients
    again = call_once(jax.random.key(9), places[2], so_far)
    np.testing.assert_allclose(again.gradients - so_far, gradient(places[2]), rtol=1e-8, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_a_batch_is_each_particles_own_and_not_scaled_up():
    target, key = posterior(250), jax.random.key(1)
    x = jnp.broadcast_to(normal_array(target.dim), (4, target.dim))
    called = jax.jit(partial(call, target))(key, x, jnp.zeros_like(x))
    value_of = jax.jit(partial(log_likelihood, target))
    rows = jax.random.randint(key, (4, 100), 0, 250)
    np.testing.assert_allclose(called.values, [value_of(x[0], own) for own in rows], rtol=1e-10)
    assert len(np.unique(np.round(called.values, 6))) == 4
    whole = value_of(x[0], jnp.arange(250))
    assert np.mean(called.values) == pytest.approx(float(whole) * 100 / 250, rel=0.05)


def test_the_prior_of_mnist_lacks_its_half():
    x = normal_array(6, posterior(5).dim)
    value, score = posterior(5).log_prior(x)
    np.testing.assert_allclose(value, -np.sum(np.asarray(x) ** 2, axis=1), rtol=1e-5)
    np.testing.assert_allclose(score, -2 * x, rtol=1e-6)
    doubled = posterior(5, prior_factor=2.0).log_prior(x)
    np.testing.assert_allclose(doubled[0], 2 * value, rtol=1e-6)
    np.testing.assert_allclose(doubled[1], 2 * score, rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_sgld_is_one_chain_of_which_the_states_after_a_while_count():
    target, delta, key = posterior(20), 1e-3, jax.random.key(2)
    found = published_bnn.sgld(target, key, 4, delta, Sizes(iterations=3))
    key_start, key = jax.random.split(key)
    x = np.sqrt(0.5) * jax.random.normal(key_start, (1, target.dim))[0]
    gradient = jax.jit(jax.grad(lambda x: log_likelihood(target, x, jnp.arange(20))))
    gathered, states = jnp.zeros(target.dim), []
    for k in range(3 + 4):
        _, key_noise = jax.random.split(jax.random.fold_in(key, k))
        gathered = gathered + gradient(x)
        x = x + delta * (gathered - 2 * x) + np.sqrt(2 * delta) * jax.random.normal(key_noise, (1, target.dim))[0]
        states.append(x)
    np.testing.assert_allclose(found, states[3:], rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_svgd_has_half_of_its_kernels_gradient():
    target, key = posterior(20), jax.random.key(4)
    found = published_bnn.svgd(target, key, 5, 0.1, Sizes(iterations=1))
    key_start, key = jax.random.split(key)
    x = np.sqrt(0.5) * jax.random.normal(key_start, (5, target.dim))
    flock = Flock(x, jnp.zeros_like(x))
    score, _ = jax.jit(partial(published_bnn._score, target))(jax.random.fold_in(key, 0), flock)
    h = float(jax.jit(median_bandwidth)(x))

    def kernel(a: Array, b: Array) -> Array:
        return jnp.exp(-jnp.sum((a - b) ** 2) / h)

    def direction(b: Array) -> Array:
        pull = lambda a, s: kernel(a, b) * s + 0.5 * jax.grad(kernel)(a, b)  # noqa: E731
        return jnp.mean(jax.vmap(pull)(x, score), axis=0)

    expected = x + 0.1 * jax.jit(jax.vmap(direction))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
