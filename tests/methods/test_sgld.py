"""Stochastic gradient Langevin dynamics: its chains by a plain loop, what they cost, and where they settle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

import pgps
from helpers import assert_moments, bumpy
from pgps.density import AbstractStochasticDensity, Problem
from pgps.methods import SGLD
from pgps.methods.base import estimation_key

KEY = jax.random.key(4)


class Tilted(AbstractStochasticDensity):
    """Estimates are off by a random slope."""

    per_particle: bool = False

    def __call__(self, particle: PyTree) -> Array:
        return bumpy(particle)

    def estimate(self, key: Array):
        slope = jax.random.normal(key, (2,))
        return lambda x: bumpy(x) + slope @ x


def plain_loop(num_chains: int, num_steps: int, step_size: float, decay: float, initial: pgps.Normal) -> np.ndarray:
    """The states of all chains after each step."""
    key_init, key_steps = jax.random.split(KEY)
    x = Problem.of(bumpy, initial).draw(key_init, num_chains)
    score_of = jax.jit(lambda key, x: jax.vmap(jax.grad(Tilted().estimate(estimation_key(key))))(x))
    score = score_of(key_init, x)
    states = []
    for k in range(num_steps):
        key, delta = jax.random.fold_in(key_steps, k), step_size * (1 + k) ** -decay
        x = x + delta * score + np.sqrt(2 * delta) * jax.random.normal(key, x.shape, x.dtype)
        score = score_of(key, x)
        states.append(np.asarray(x))
    return np.stack(states)


@pytest.mark.parametrize(
    ("num_chains", "num_particles", "decay"),
    [(1, 4, 0.0), (2, 6, 0.55), (None, 3, 0.0)],
    ids=["one-chain", "two-chains-decaying", "chain-per-particle"],
)
def test_particles_are_the_last_states(x64: None, num_chains: int | None, num_particles: int, decay: float):
    initial, num_steps = pgps.Normal(jnp.array([0.5, -1.0]), 1.3), 10
    method = SGLD(0.05, num_steps, num_chains, decay)
    result = pgps.sample(Tilted(), initial, key=KEY, num_particles=num_particles, method=method)
    chains = num_chains or num_particles
    kept = num_particles // chains
    states = plain_loop(chains, num_steps, 0.05, decay, initial)
    # A ring: the states of step k are in place k modulo their number.
    ring = np.zeros((kept, chains, 2))
    for k in range(num_steps):
        ring[k % kept] = states[k]
    np.testing.assert_allclose(result.particles, ring.reshape(num_particles, 2), rtol=1e-10)
    np.testing.assert_allclose(result.trace["step_size"], 0.05 * (1 + np.arange(num_steps)) ** -decay, rtol=1e-12)
    # Each chain's start and steps.
    assert result.num_evaluations.gradients == (num_steps + 1) * chains
    assert result.num_evaluations.values == 0
    assert result.warnings == ()


def test_many_chains_settle_where_their_recursion_does():
    """On N(m, s^2) steps of size delta settle at the variance s^2 / (1 - delta / (2 s^2))."""
    mean, scale, delta = np.array([1.0, -2.0]), np.array([0.5, 1.0]), 0.1
    law = pgps.Normal(jnp.asarray(mean), jnp.asarray(scale))
    # Of the start (1 - 0.1)^150 = 1e-7 is left.
    result = pgps.sample(law.logdensity, pgps.Normal(shape=(2,)), key=KEY, num_particles=5000, method=SGLD(delta, 150))
    variance = scale**2 / (1 - delta / (2 * scale**2))
    assert_moments(result.particles, mean, variance)
    # The target's own variance is seen to be another one.
    with pytest.raises(AssertionError):
        assert_moments(result.particles, mean, scale**2)


def test_particles_that_no_step_has_reached_are_doubted():
    with pytest.warns(pgps.PGPSWarning, match="40% of the particles are copies of where chains started; take more"):
        result = pgps.sample(bumpy, pgps.Normal(shape=(2,)), key=KEY, num_particles=10, method=SGLD(1e-2, 6, 1))
    assert len(np.unique(result.particles[6:], axis=0)) == 1
    assert len(np.unique(result.particles[:6], axis=0)) == 6


def test_particles_are_shared_equally_by_the_chains():
    with pytest.raises(ValueError, match=r"num_particles must be a multiple of num_chains \(3\), got 10; match them"):
        pgps.sample(bumpy, pgps.Normal(shape=(2,)), key=KEY, num_particles=10, method=SGLD(num_chains=3))


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("num_chains", 0, ValueError),
        ("num_chains", 1.5, TypeError),
        ("decay", -0.1, ValueError),
        ("decay", 1.1, ValueError),
        ("decay", np.nan, ValueError),
    ],
)
def test_bad_arguments(name: str, value: float, error: type[Exception]):
    with pytest.raises(error, match=f"{name} must .*, got {value}; "):
        SGLD(**{name: value})  # pyright: ignore[reportArgumentType]
