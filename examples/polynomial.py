"""Which degree has this polynomial? The evidence of six models, next to its closed form.

    y ~ N(X_d theta, s^2 I),    theta ~ N(0, I),    ln Z_d = ln N(y; 0, s^2 I + X_d X_d^T)

X_d has the first d + 1 Legendre polynomials, and columns of zeros up to degree 5, whose parameters keep their prior and
change no evidence. So the models differ in the values of an array alone, and run in one compiled program.
"""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pgps
from common import COLORS, panels, run, save

NOISE, DEGREES = 0.3, np.arange(6)


class Model(eqx.Module):
    """A linear model's joint log-density of its parameters and the data."""

    design: jax.Array
    y: jax.Array

    def __call__(self, theta: jax.Array) -> jax.Array:
        """ln p(y, theta)."""
        log_prior = jnp.sum(jax.scipy.stats.norm.logpdf(theta))
        return log_prior + jnp.sum(jax.scipy.stats.norm.logpdf(self.y, self.design @ theta, NOISE))


def closed_form(y: np.ndarray, design: np.ndarray) -> float:
    """ln N(y; 0, s^2 I + X X^T)."""
    covariance = NOISE**2 * np.eye(len(y)) + design @ design.T
    return -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + y @ np.linalg.solve(covariance, y))


def main(
    num_particles: int = 1000,
    seed: int = 0,
    out: Path | None = None,
    method: pgps.methods.AbstractMethod | None = None,
) -> tuple[np.ndarray, np.ndarray, list[pgps.Result]]:
    """Compare polynomials by their evidence, next to its closed form.

    Returns the z-scores of the log evidences, their closed forms, and the runs.
    """
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 30)
    columns = np.polynomial.legendre.legvander(x, DEGREES[-1])
    y = columns @ [0.5, -1.0, 0.4, 0.8, 0.0, 0.0] + NOISE * rng.normal(size=30)

    designs = [columns * (degree >= DEGREES) for degree in DEGREES]
    exact = np.array([closed_form(y, design) for design in designs])
    models = [Model(jnp.asarray(design), jnp.asarray(y)) for design in designs]
    keys = jax.random.split(jax.random.key(seed), 6)
    results = pgps.sample_many(models, pgps.Normal(shape=(6,)), keys=keys, num_particles=num_particles, method=method)

    found = np.array([result.log_evidence for result in results])
    errors = np.array([result.log_evidence_error for result in results])
    z_scores = (found - exact) / errors
    print("degree   closed form   log evidence    error        z   probability")
    for row in zip(DEGREES, exact, found, errors, z_scores, np.exp(found - np.logaddexp.reduce(found)), strict=True):
        print("{:6d} {:13.3f} {:14.3f} {:8.3f} {:8.1f} {:13.4f}".format(*row))
    if out is not None:
        figure, axes = panels(2)
        axes[0].plot(x, y, "o", color=COLORS[1], markersize=4)
        best = int(np.argmax(found))
        draws = np.asarray(results[best].resample(jax.random.key(seed), 30))
        axes[0].plot(x, designs[best] @ draws.T, color=COLORS[0], linewidth=0.5, alpha=0.4)
        axes[0].set(title=f"the data, and 30 draws of degree {best}", xlabel="x", ylabel="y")
        axes[1].axhline(0, color="grey", linewidth=0.8)
        axes[1].errorbar(DEGREES, found - exact, 2 * errors, fmt="o", color=COLORS[0])
        axes[1].set(title="error of the log evidence", xlabel="degree")
        save(figure, out, "polynomial")
    return z_scores, exact, results


if __name__ == "__main__":
    run(main)
