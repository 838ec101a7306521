"""Noise is JAX's own, whatever the key and the type; only its program is another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps.noise import draw_noise


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
