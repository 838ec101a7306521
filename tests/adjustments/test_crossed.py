"""Each half of the particles moves by what the other half shows."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from helpers import as_arrays, local_widths
from pgps.adjustments import HMC
from pgps.adjustments.crossed import Crossed
from pgps.adjustments.widths import Widths, uniform_widths
from pgps.density import Population

KEY = jax.random.key(0)


def normal(x: Array, key: Array | None = None) -> Population:
    return Population.of(x, -0.5 * jnp.sum(x**2, axis=1), -x, jnp.zeros(len(x)))


def test_a_half_is_measured_by_the_other():
    x = jax.random.normal(KEY, (100, 3)) * jnp.where(jnp.arange(100) < 50, 1.0, 4.0)[:, None]
    population = Population.of(x, jnp.zeros(100), -x / x.std(axis=0) ** 2, jnp.zeros(100))
    halves = [jax.tree.map(lambda leaf, part=part: leaf[part], population) for part in (slice(50), slice(50, None))]
    first, second = (uniform_widths(half).base for half in halves)
    bases = Crossed.fitted(uniform_widths, population).base(x)
    np.testing.assert_allclose(bases[:50], jnp.broadcast_to(second, (50, 3)), rtol=1e-6)
    np.testing.assert_allclose(bases[50:], jnp.broadcast_to(first, (50, 3)), rtol=1e-6)


def test_an_odd_number_of_particles_is_measured_by_all():
    population = normal(jax.random.normal(KEY, (101, 2)))
    bases = Crossed.fitted(uniform_widths, population).base(population.particles)
    np.testing.assert_allclose(bases, jnp.broadcast_to(uniform_widths(population).base, (101, 2)), rtol=1e-6)


def test_what_is_asked_of_all_is_asked_of_each_part():
    population = normal(jax.random.normal(KEY, (100, 3)))
    crossed, x = Crossed.fitted(local_widths, population), population.particles
    parts = [jax.tree.map(lambda leaf, k=k: leaf[k], crossed.parts) for k in (0, 1)]
    for method in (Widths.along, Widths.combine):
        by_parts = jnp.concatenate([method(part, half) for part, half in zip(parts, (x[:50], x[50:]), strict=True)])
        np.testing.assert_allclose(getattr(crossed, method.__name__)(x), by_parts, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(crossed.first.along(x), parts[0].along(x), rtol=1e-5, atol=1e-6)


def test_moves_that_adapt_leave_the_law_as_it_is():
    """With widths and axes from the very particles that they move, the law drifts from one adjustment to the next."""
    adjustment, dim, num_runs, one = as_arrays(HMC(0.5, 2, precondition=True, local=True)), 12, 200, jnp.ones(())
    # A Gaussian whose axes are not the coordinates', and 1 to 30 long.
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]
    root = jnp.asarray(rotation * np.geomspace(1, 30, dim), jnp.float32)
    precision = jnp.linalg.inv(root @ root.T)

    def gaussian(x: Array, key: Array | None = None) -> Population:
        score = -x @ precision
        return Population.of(x, 0.5 * jnp.sum(score * x, axis=1), score, jnp.zeros(len(x)))

    def run(key: Array) -> Array:
        key_start, key_moves = jax.random.split(key)
        population = gaussian(jax.random.normal(key_start, (100, dim)) @ root.T)

        def adjust(carry: tuple, key: Array) -> tuple[tuple, None]:
            population, memory, _ = adjustment.adjust(key, one, one, carry[0], carry[1], gaussian)
            return (population, memory), None

        start = (population, adjustment.init(population))
        (population, _), _ = jax.lax.scan(adjust, start, jax.random.split(key_moves, 30))
        return -2 * jnp.mean(population.logdensity) / dim

    means = np.asarray(jax.jit(lambda keys: jax.lax.map(run, keys))(jax.random.split(KEY, num_runs)))
    assert abs(means.mean() - 1) < 4 * means.std() / np.sqrt(num_runs)
