"""Normal noise for every particle: the numbers of `jax.random.normal`, in a third of its time on a CPU.

JAX's own generator, Threefry-2x32 (Salmon et al., 2011), is compiled on a CPU as a loop over its rounds that passes
over memory at each. Here the rounds are written out, and XLA makes one pass of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

# The rotations of two groups of four rounds, in turns, and the constant that the key's third word is made with.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def draw_noise(key: Array, particles: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    """Standard normal noise xi for every particle."""
    # In one row: the same numbers as in many short ones, several times as fast on a CPU, and drawn once: in many rows
    # XLA would draw them again in every loop that reads the new particles.
    return _normal(key, particles.size, particles.dtype).reshape(particles.shape)


def _normal(key: Array, num: int, dtype: Any) -> Float[Array, " num"]:
    ours = jax.random.key_impl(key) == "threefry2x32" and jax.config.jax_threefry_partitionable  # pyright: ignore
    if not ours or dtype != jnp.float32 or num >= 2**32:
        return jax.random.normal(key, (num,), dtype)
    low = np.nextafter(np.float32(-1), np.float32(0))
    bits = _bits(jax.random.key_data(key), num)
    # 23 bits are a number in [1, 2): 1 is taken away, and what is left is stretched over (-1, 1).
    fraction = jax.lax.bitcast_convert_type(bits >> 9 | np.float32(1).view(np.uint32), jnp.float32) - 1
    uniform = jnp.maximum(low, fraction * (1 - low) + low)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)


def _bits(words: UInt32[Array, "2"], num: int) -> UInt32[Array, " num"]:
    """Threefry's hash of 0, 1, 2, ... with its two words combined, as `jax.random.bits` has it."""
    keys = (words[0], words[1], words[0] ^ words[1] ^ _PARITY)
    count = jnp.arange(num, dtype=jnp.uint32)
    left, right = jnp.zeros_like(count) + keys[0], count + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ (right << rotation | right >> (32 - rotation))
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left ^ right
