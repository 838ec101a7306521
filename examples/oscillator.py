"""A damped oscillator, measured once a second: which of its frequencies is the true one, and which an alias?

    x'' = -2 c x' - (2 pi f)^2 x,    x(0) = 1,    x'(0) = 0,    y_i ~ N(x(t_i), 0.25^2),    t_i = 1, ..., 8

f is uniform on (0.1, 1.9) and c exponential of mean 0.1. A fast oscillation between two measurements is seen as a slow
one, so that the posterior has several modes. Their masses are checked against a sum over a fine grid.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import pgps
from common import COLORS, panels, run, save
from pgps import metrics
from pgps.bijectors import Interval, Positive, unconstrain, unconstrain_law

LOW, HIGH, NOISE, STEPS = 0.1, 1.9, 0.25, 40
BIJECTORS = {"frequency": Interval(LOW, HIGH), "damping": Positive()}
EDGES = np.array([0.5, 1.0, 1.5])  # between the modes


def solve(params: dict[str, jax.Array], num_seconds: int = 8) -> jax.Array:
    """The position at each step of 1 / 40 s, by the Runge-Kutta method of fourth order."""
    omega, h = 2 * jnp.pi * params["frequency"], 1 / STEPS

    def slope(state: jax.Array) -> jax.Array:
        return jnp.array([state[1], -2 * params["damping"] * state[1] - omega**2 * state[0]])

    def step(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        k1 = slope(state)
        k2 = slope(state + h / 2 * k1)
        k3 = slope(state + h / 2 * k2)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(state + h * k3))
        return state, state[0]

    return jax.lax.scan(step, jnp.array([1.0, 0.0]), None, num_seconds * STEPS)[1]


def draw_prior(key: jax.Array) -> dict[str, jax.Array]:
    """A frequency and a damping."""
    keys = jax.random.split(key)
    damping = 0.1 * jax.random.exponential(keys[1])
    return {"frequency": jax.random.uniform(keys[0], (), float, LOW, HIGH), "damping": damping}


def log_prior(params: dict[str, jax.Array]) -> jax.Array:
    """Its density."""
    return -jnp.log(HIGH - LOW) - jnp.log(0.1) - params["damping"] / 0.1


def on_a_grid(log_joint: Callable, num: int) -> tuple[np.ndarray, float]:
    """The modes' masses and the log evidence, by a sum over frequencies and dampings."""
    middles = (np.arange(3 * num) + 0.5) / (3 * num)
    f, c = LOW + (HIGH - LOW) * middles, middles[1::3]
    values = np.array([log_joint({"frequency": jnp.full(num, x), "damping": jnp.asarray(c)}) for x in f], float)
    sums = np.exp(values - values.max()).sum(axis=1)
    log_evidence = values.max() + np.log(sums.sum() * (f[1] - f[0]) * (c[1] - c[0]))
    return np.bincount(np.digitize(f, EDGES), sums) / sums.sum(), float(log_evidence)


def main(
    num_particles: int = 1000,
    seed: int = 0,
    out: Path | None = None,
    method: pgps.methods.AbstractMethod | None = None,
    num_dampings: int = 600,
) -> tuple[metrics.Moments, np.ndarray, float, pgps.Result]:
    """Sample a damped oscillator whose frequency has aliases, next to a grid.

    Returns the modes' masses, those on the grid, the log evidence there, and the run.
    """
    truth = {"frequency": jnp.asarray(0.3), "damping": jnp.asarray(0.05)}
    seen = slice(STEPS - 1, None, STEPS)
    y = solve(truth)[seen] + NOISE * np.random.default_rng(1).normal(size=8)

    def log_joint(params: dict[str, jax.Array]) -> jax.Array:
        return log_prior(params) + jnp.sum(jax.scipy.stats.norm.logpdf(y, solve(params)[seen], NOISE))

    density, initial = unconstrain(log_joint, BIJECTORS), unconstrain_law((draw_prior, log_prior), BIJECTORS)
    result = pgps.sample(density, initial, key=jax.random.key(seed), num_particles=num_particles, method=method)
    params = density.constrain(result.particles)

    inside = np.digitize(params["frequency"], EDGES)[:, None] == np.arange(4)
    mass = metrics.moments(inside, result.log_weights, result.families)
    masses, log_evidence = on_a_grid(jax.jit(jax.vmap(log_joint)), num_dampings)
    print("frequency      grid     pgps    error        z")
    for k, name in enumerate(("0.1 to 0.5", "0.5 to 1.0", "1.0 to 1.5", "1.5 to 1.9")):
        z = (mass.mean[k] - masses[k]) / mass.mean_error[k]
        print(f"{name:10s} {masses[k]:8.4f} {mass.mean[k]:8.4f} {mass.mean_error[k]:8.4f} {z:8.1f}")
    error = result.log_evidence_error
    print(f"log evidence: {result.log_evidence:.3f} +- {error:.3f}; on the grid {log_evidence:.3f}")
    if out is not None:
        figure, axes = panels(2)
        weights = np.asarray(jax.nn.softmax(result.log_weights))
        axes[0].hist(params["frequency"], 150, weights=weights, color=COLORS[0])
        axes[0].set(title="posterior of the frequency", xlabel="frequency", yticks=[])
        heaviest = np.argmax(inside * weights[:, None], axis=0)
        curves = jax.vmap(solve)(jax.tree.map(lambda leaf: leaf[heaviest], params))
        t = np.arange(1, 8 * STEPS + 1) / STEPS
        axes[1].plot(t, curves.T, color=COLORS[0], linewidth=0.8)
        axes[1].errorbar(np.arange(1, 9), y, NOISE, fmt="o", color=COLORS[1], markersize=4)
        axes[1].set(title="a particle of each mode; the data", xlabel="seconds", ylabel="position")
        save(figure, out, "oscillator")
    return mass, masses, log_evidence, result


if __name__ == "__main__":
    run(main)
