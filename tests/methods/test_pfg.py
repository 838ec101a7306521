"""Preconditioned functional gradient flow: on Gaussians its field is affine, and known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import pgps
from helpers import normal_array
from pgps.density import Population, Problem
from pgps.fields import MLP
from pgps.initial import FullNormal
from pgps.methods import PFG, functional_gradient
from pgps.methods.pfg import curvature

KEY = jax.random.key(7)
M0, C0 = np.array([0.5, -0.5]), np.array([[1.0, -0.3], [-0.3, 0.8]])
M1, C1 = np.array([-0.5, 1.0]), np.array([[0.5, 0.3], [0.3, 1.2]])
P0, P1 = np.linalg.inv(C0), np.linalg.inv(C1)
NUM = 4000


def target(x: Array) -> Array:
    z = x - jnp.asarray(M1, x.dtype)
    return -0.5 * z @ jnp.asarray(P1, x.dtype) @ z


def test_the_loss():
    """Its minimum over constant fields is at the mean score; particles outside the support are left out."""
    x, score, velocity, divergence = (normal_array(6, 2, seed=seed) for seed in range(4))
    divergence = divergence[:, 0]
    logdensity = jnp.zeros(6).at[2].set(-jnp.inf)
    population = Population.of(x, logdensity, score.at[2].set(jnp.nan), jnp.zeros(6))
    kept = np.delete(np.arange(6), 2)
    f, s, d = (np.asarray(values)[kept] for values in (velocity, score, divergence))
    expected = np.mean(np.sum(f**2, axis=1) / 2 - np.sum(f * s, axis=1) - d)
    assert float(functional_gradient(velocity, divergence, population)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("precondition", [False, True], ids=["plain", "preconditioned"])
def test_the_field_is_the_wasserstein_gradient(precondition: bool):
    """With particles of N(m0, C0) it is H^-1 (grad ln p1 - grad ln p0), where H = I or the target's precision."""
    initial = FullNormal(jnp.asarray(M0), jnp.asarray(C0))
    method = PFG(1.0, 1, MLP(32, activation=jnp.tanh), first_training_steps=1500, precondition=precondition)
    result = pgps.sample(target, initial, key=KEY, num_particles=NUM, method=method)
    key_particles = jax.random.split(jax.random.split(KEY)[0], 3)[0]
    x = np.asarray(Problem.of(target, initial).draw(key_particles, NUM))
    # One step of size 1: the particles have moved by the field.
    field = np.asarray(result.particles) - x
    exact = -(x - M1) @ P1 + (x - M0) @ P0
    plain = np.linalg.norm(field - exact) / np.linalg.norm(exact)
    if precondition:
        assert plain > 0.3
        exact = exact @ np.linalg.inv(P1)
    # The particles' own moments are off by 1 / sqrt(4000) = 2 %, and so is what is learnt from them, at the least.
    assert np.linalg.norm(field - exact) / np.linalg.norm(exact) < 0.12
    np.testing.assert_allclose(result.trace["field_norm"][0], np.linalg.norm(field, axis=1).mean(), rtol=1e-4)
    assert result.num_evaluations.gradients == 2 * NUM


@pytest.mark.usefixtures("x64")
def test_curvature_of_a_gaussian_is_exact():
    x = normal_array(50, 2) @ jnp.array([[1.0, 0.7], [0.0, 0.4]]) + 3
    values, scores = jax.vmap(jax.value_and_grad(target))(x)
    np.testing.assert_allclose(curvature(Population.of(x, values, scores, jnp.zeros(50))), P1, rtol=1e-9)
    # Particles outside the support do not count.
    outside = jnp.arange(50) % 5 == 0
    population = Population.of(x, jnp.where(outside, -jnp.inf, values), scores, jnp.zeros(50))
    np.testing.assert_allclose(curvature(population), P1, rtol=1e-9)


def test_a_gaussian_is_found():
    """The mean and the variances come near the target's; a flow of a trained field is no exact sampler."""
    initial = pgps.Normal(shape=(2,))
    result = pgps.sample(target, initial, key=KEY, num_particles=500, method=PFG(0.1, 100, MLP(32), precondition=True))
    np.testing.assert_allclose(result.particles.mean(axis=0), M1, atol=0.1)
    np.testing.assert_allclose(np.cov(np.asarray(result.particles).T), C1, atol=0.15)
    assert np.all(result.trace["training_steps"] == 20)


def test_many_dimensions_need_no_square_matrix():
    """A network's D = 25,450: D x D numbers would take 2.6 GB, and a product with them most of a step."""
    dim, method = 25_450, PFG(1e-2, 10, MLP(8))
    problem = Problem.of(lambda x: -0.5 * jnp.sum(x**2), pgps.Normal(shape=(dim,)))
    state = eqx.filter_eval_shape(method.init, KEY, problem, 10)
    traced = str(jax.make_jaxpr(lambda state: method.step(KEY, state, problem))(state))
    assert f"[10,{dim}]" in traced
    assert f"[{dim},{dim}]" not in traced
