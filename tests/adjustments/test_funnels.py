"""Moves through funnels: the ways that are found, their volumes, and the law that they leave as it is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from helpers import local_widths, normal_array
from pgps import targets
from pgps.adjustments.crossed import Crossed
from pgps.adjustments.funnels import fit_funnels, funnel_step
from pgps.adjustments.metropolis import Move
from pgps.adjustments.widths import Widths, width_ratio
from pgps.density import Population

OPTIMISED = True

KEY = jax.random.key(5)
NECK = targets.Funnel(6)


def group(x: Array) -> Array:
    """Five effects around a mean, with the logarithm of their spread as the second coordinate."""
    mean, log_spread, effects = x[0], x[1], x[2:]
    return (
        -0.5 * mean**2
        - 0.5 * (log_spread / 1.5) ** 2
        - 0.5 * jnp.sum(((effects - mean) / jnp.exp(log_spread)) ** 2)
        - effects.size * log_spread
    )


def group_draws(num: int) -> Array:
    noise = normal_array(num, 7)
    mean, log_spread = noise[:, :1], 1.5 * noise[:, 1:2]
    effects = mean + np.exp(log_spread) * noise[:, 2:]
    return jnp.asarray(np.concatenate([mean, log_spread, effects], axis=1), jnp.float32)


@eqx.filter_jit
def evaluated(density, x: Array) -> Population:
    values, scores = jax.vmap(jax.value_and_grad(density))(x)
    return Population.of(x, values, scores, jnp.zeros_like(values))


@eqx.filter_jit
def fitted(population: Population) -> Widths:
    widths = local_widths(population)
    widths = widths._replace(funnels=fit_funnels(population, widths))
    assert widths.funnels is not None
    return widths


CASES = {"neck": (NECK, lambda num: NECK.sample(KEY, num), 0, 5), "group": (group, group_draws, 1, 5)}


@pytest.mark.parametrize("name", CASES)
def test_widths_that_vary_are_found(name: str):
    density, draw, coordinate, num_steep = CASES[name]
    funnels = fitted(evaluated(density, draw(4000))).funnels
    assert funnels is not None
    assert funnels.active
    way = jax.tree.map(lambda leaf: np.asarray(leaf[0]), funnels)
    # One step along the way is one in the coordinate that decides, and widths are exp(x_0 / 2) and exp(x_1).
    unit = way.shift[coordinate]
    slopes = np.sort(way.slopes)[-num_steep:] / unit
    np.testing.assert_allclose(slopes, 0.5 if name == "neck" else 1.0, rtol=0.1)
    # Nothing else becomes narrow: of a group, its mean does not.
    np.testing.assert_allclose(np.sort(way.slopes)[:-num_steep] / unit, 0.0, atol=0.05)


@pytest.mark.parametrize("name", CASES)
def test_moves_reach_far_and_leave_the_law_as_it_is(name: str):
    density, draw, coordinate, _ = CASES[name]
    draws = draw(20_000)
    widths = Crossed.same(fitted(evaluated(density, draws[:4000])))

    @jax.jit
    def move(population: Population) -> Population:
        def step(k: Array, population: Population) -> Population:
            key = jax.random.fold_in(KEY, k)
            return funnel_step(key, population, widths, lambda x, key=None: evaluated(density, x)).population

        return jax.lax.fori_loop(0, 10, step, population)

    moved = np.asarray(move(evaluated(density, draws[4000:])).particles)
    start = np.asarray(draws[4000:])
    assert np.corrcoef(moved[:, coordinate], start[:, coordinate])[0, 1] < 0.3
    scale = 3.0 if name == "neck" else 1.5
    position = moved[:, coordinate] / scale
    width = moved[:, coordinate] * (0.5 if name == "neck" else 1.0)
    centre = 0.0 if name == "neck" else moved[:, :1]
    standard = np.delete(moved - centre, [0, coordinate], axis=1) / np.exp(width)[:, None]
    num = len(moved)
    assert abs(position.mean()) < 4 / np.sqrt(num)
    assert abs((position**2).mean() - 1) < 4 * np.sqrt(2 / num)
    assert abs((standard**2).mean() - 1) < 4 * np.sqrt(2 / standard.size)
    # Also at the neck, which holds a fortieth of the mass.
    assert np.mean(position < -1.96) == pytest.approx(0.025, abs=4 * np.sqrt(0.025 / num))


def test_volumes_grow_as_reckoned(monkeypatch: pytest.MonkeyPatch):
    draws = group_draws(4000)
    widths, ratios = Crossed.same(fitted(evaluated(group, draws))), []

    def flat(x: Array, key: Array | None = None) -> Population:
        return Population.of(x, jnp.zeros(len(x)), jnp.zeros_like(x), jnp.zeros(len(x)))

    def accept(_: Array, __: Population, proposal: Population, log_ratio: Array) -> Move:
        ratios.append(log_ratio)
        return Move(proposal, jnp.ones(()), jnp.asarray(0), jnp.ones(()))

    monkeypatch.setattr("pgps.adjustments.funnels.metropolis", accept)

    def end(x: Array) -> Array:
        return funnel_step(KEY, flat(x[None]), widths, flat).population.particles[0]

    volume = np.linalg.slogdet(np.asarray(jax.jacobian(end)(draws[0]), np.float64))[1]
    end(draws[0])
    assert abs(volume) > 0.1
    assert float(ratios[-1][0]) == pytest.approx(volume, rel=1e-3)


def test_there_are_no_ways_where_widths_are_the_same():
    x = normal_array(2000, 4).astype(jnp.float32)
    population = evaluated(lambda x: -0.5 * jnp.sum(x**2), x)
    widths = local_widths(population)
    funnels = fit_funnels(population, widths)
    assert funnels is not None
    assert not funnels.active
    assert float(width_ratio(population, widths)) == 1.0


def test_few_particles_show_no_ways():
    population = evaluated(NECK, NECK.sample(KEY, 90))
    assert fit_funnels(population, local_widths(population)) is None
