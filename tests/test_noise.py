"""Keys and noise are JAX's own, whatever the key and the type; only their program is another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps.noise import draw_integers, draw_noise, draw_uniform, fold_in, split


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (1000, 8)])
@pytest.mark.parametrize("compiled", [False, True])
def test_noise_is_that_of_jax(shape, compiled):
    draw = jax.jit(draw_noise) if compiled else draw_noise
    for seed in (0, 2**31 + 5):
        noise = draw(jax.random.key(seed), jnp.zeros(shape))
        np.testing.assert_array_equal(noise, jax.random.normal(jax.random.key(seed), shape))


def test_noise_of_many_keys_is_that_of_each():
    keys = jax.random.split(jax.random.key(1), 4)
    together = jax.vmap(draw_noise, (0, None))(keys, jnp.zeros((5, 2)))
    for key, noise in zip(keys, together, strict=True):
        np.testing.assert_array_equal(noise, draw_noise(key, jnp.zeros((5, 2))))


def test_noise_of_other_types_generators_and_settings_is_that_of_jax():
    key = jax.random.key(0)
    with jax.enable_x64(True):
        double = draw_noise(key, jnp.zeros((5, 2), jnp.float64))
        assert double.dtype == jnp.float64
        np.testing.assert_array_equal(double, jax.random.normal(key, (5, 2), jnp.float64))
    np.testing.assert_array_equal(
        draw_noise(jax.random.key(0, impl="rbg"), jnp.zeros((5, 2))),
        jax.random.normal(jax.random.key(0, impl="rbg"), (5, 2)),
    )
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(draw_noise(key, jnp.zeros((5, 2))), jax.random.normal(key, (5, 2)))


def test_keys_are_those_of_jax():
    for key in (jax.random.key(0), jax.random.key(2**31 + 5), jax.random.key(0, impl="rbg")):
        for ours, jaxs in (
            (split(key), jax.random.split(key)),
            (split(key, 5), jax.random.split(key, 5)),
            (fold_in(key, 2**31), jax.random.fold_in(key, 2**31)),
            (jax.jit(fold_in)(key, 7), jax.random.fold_in(key, 7)),
        ):
            assert ours.dtype == jaxs.dtype
            np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(jaxs))
    with jax.threefry_partitionable(False):
        key = jax.random.key(0)
        np.testing.assert_array_equal(jax.random.key_data(split(key)), jax.random.key_data(jax.random.split(key)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_numbers_are_those_of_jax(dtype):
    with jax.enable_x64(dtype == "float64"):
        drawn = draw_uniform(jax.random.key(3), 1000, jnp.dtype(dtype))
        np.testing.assert_array_equal(drawn, jax.random.uniform(jax.random.key(3), (1000,), dtype))


@pytest.mark.parametrize("below", [1, 2, 345, 2**16, 60_000, 70_001, 2**31 - 1])
@pytest.mark.parametrize("double", [False, True])
def test_integers_are_those_of_jax(below, double):
    with jax.enable_x64(double):
        drawn = draw_integers(jax.random.key(3), 1000, below)
        expected = jax.random.randint(jax.random.key(3), (1000,), 0, below)
        assert drawn.dtype == expected.dtype
        np.testing.assert_array_equal(drawn, expected)


def test_integers_of_another_generator_are_those_of_jax():
    key = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(draw_integers(key, 10, 7), jax.random.randint(key, (10,), 0, 7))
