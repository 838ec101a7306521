"""Keys and noise for every particle: the numbers of `jax.random`, in a third of its time on a CPU.

JAX's own generator, Threefry-2x32 (Salmon et al., 2011), is compiled on a CPU as a loop over its rounds that passes
over memory at each. Here the rounds are written out, and XLA makes one pass of them: a small program for each draw
instead of a loop, which also takes less time to compile.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

# The rotations of two groups of four rounds, in turns, and the constant that the key's third word is made with.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def draw_noise(key: Array, particles: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    """Standard normal noise xi for every particle."""
    # In one row: the same numbers as in many short ones, several times as fast on a CPU, and drawn once: in many rows
    # XLA would draw them again in every loop that reads the new particles.
    return _normal(key, particles.size, particles.dtype).reshape(particles.shape)


def draw_uniform(key: Array, num: int, dtype: Any) -> Float[Array, " num"]:
    """Numbers in [0, 1), drawn once: without the barrier XLA draws them again in every loop that reads them."""
    drawn = _fractions(key, num) if _is_ours(key, num, dtype) else jax.random.uniform(key, (num,), dtype)
    return jax.lax.optimization_barrier(drawn)


def draw_integers(key: Array, num: int, below: int) -> Int[Array, " num"]:
    """Whole numbers in [0, below), as `jax.random.randint` has them."""
    if not _is_threefry(key) or jnp.result_type(int) != jnp.int32:
        return jax.random.randint(key, (num,), 0, below)
    high, low = (_bits(half, num) % np.uint32(below) for half in split(key))
    # 2^32 as the remainder by which a high word counts; it overflows as in JAX where `below` is above 2^16.
    factor = (2**16 % below) ** 2 % 2**32 % below
    return ((high * np.uint32(factor) + low) % np.uint32(below)).astype(jnp.int32)


def split(key: Array, num: int = 2) -> Array:
    """New keys, as `jax.random.split` has them."""
    if not _is_threefry(key):
        return jax.random.split(key, num)
    return _key(key, jnp.arange(num, dtype=jnp.uint32))


def fold_in(key: Array, number: Int[Array, ""] | int) -> Array:
    """A new key for a number that is not negative, as `jax.random.fold_in` has it."""
    if not _is_threefry(key):
        return jax.random.fold_in(key, number)
    return _key(key, jnp.asarray(number, jnp.uint32))


def _is_threefry(key: Array) -> bool:
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore
    return jax.random.key_impl(key) == "threefry2x32" and partitionable


def _is_ours(key: Array, num: int, dtype: Any) -> bool:
    return _is_threefry(key) and dtype == jnp.float32 and num < 2**32


def _normal(key: Array, num: int, dtype: Any) -> Float[Array, " num"]:
    if not _is_ours(key, num, dtype):
        return jax.random.normal(key, (num,), dtype)
    low = np.nextafter(np.float32(-1), np.float32(0))
    uniform = jnp.maximum(low, _fractions(key, num) * (1 - low) + low)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)


def _fractions(key: Array, num: int) -> Float[Array, " num"]:
    """Numbers in [0, 1) of 23 random bits each: with the exponent of 1 they are in [1, 2)."""
    bits = _bits(key, num) >> 9 | np.float32(1).view(np.uint32)
    return jax.lax.bitcast_convert_type(bits, jnp.float32) - 1


def _bits(key: Array, num: int) -> UInt32[Array, " num"]:
    left, right = _hash(jax.random.key_data(key), jnp.arange(num, dtype=jnp.uint32))
    return left ^ right


def _key(key: Array, counts: UInt32[Array, "..."]) -> Array:
    words = jax.lax.optimization_barrier(jnp.stack(_hash(jax.random.key_data(key), counts), axis=-1))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))


def _hash(words: UInt32[Array, "2"], counts: UInt32[Array, "..."]) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Threefry's two words for each of the counts."""
    keys = (words[0], words[1], words[0] ^ words[1] ^ _PARITY)
    left, right = jnp.zeros_like(counts) + keys[0], counts + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ (right << rotation | right >> (32 - rotation))
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left, right
