"""Nine modes of unequal mass: a chain of NUTS stays in one of them, weighted particles find all nine.

    p(x) = sum_k w_k N(x; m_k, 0.3 I),    m_k on the grid {-5, 0, 5}^2,    w_k = k / 45

Particles start from N(0, I), which reaches one mode.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

import pgps
from common import COLORS, panels, run, save
from pgps import metrics, targets


def one_chain(target: targets.GaussianMixture, start: jax.Array, key: jax.Array, num_draws: int) -> np.ndarray:
    """Draws of one chain of NumPyro's NUTS."""
    chain = MCMC(NUTS(potential_fn=lambda x: -target(x)), num_warmup=500, num_samples=num_draws, progress_bar=False)
    chain.run(key, init_params=start)
    return np.asarray(chain.get_samples())


def main(
    num_particles: int = 1000,
    seed: int = 0,
    out: Path | None = None,
    method: pgps.methods.AbstractMethod | None = None,
    num_draws: int = 4000,
) -> tuple[metrics.Moments, np.ndarray, pgps.Result]:
    """Sample nine modes of unequal mass, next to one chain of NUTS.

    Returns the modes' masses, the shares of the chain's draws in them, and the run.
    """
    nine, initial = targets.nine_gaussians()
    target = targets.GaussianMixture(jnp.arange(1, 10) / 45, nine.means, nine.scales)
    key, key_start, key_chain = jax.random.split(jax.random.key(seed), 3)
    result = pgps.sample(target, initial, key=key, num_particles=num_particles, method=method)
    draws = one_chain(target, initial.sample(key_start), key_chain, num_draws)

    modes = jnp.arange(9)
    inside = target.nearest_mode(result.particles)[:, None] == modes
    mass = metrics.moments(inside, result.log_weights, result.families)
    shares = np.mean(target.nearest_mode(jnp.asarray(draws))[:, None] == modes, axis=0)
    print("mode    truth     pgps    error        z     NUTS")
    for k, truth in enumerate(np.asarray(target.weights)):
        z = (mass.mean[k] - truth) / mass.mean_error[k]
        print(f"{k:4d} {truth:8.4f} {mass.mean[k]:8.4f} {mass.mean_error[k]:8.4f} {z:8.1f} {shares[k]:8.4f}")
    print(f"log evidence: {result.log_evidence:.3f} +- {result.log_evidence_error:.3f}, the truth is 0")
    if out is not None:
        figure, axes = panels(2)
        particles = np.asarray(result.resample(key_start, num_particles))
        axes[0].plot(*draws[:num_particles].T, ".", markersize=3, color=COLORS[1])
        axes[1].plot(*particles.T, ".", markersize=3, color=COLORS[0])
        for panel, title in zip(axes, ("NUTS, one chain", "pgps, resampled"), strict=True):
            panel.set(title=title, xlim=(-7, 7), ylim=(-7, 7), aspect="equal")
            for mean, weight in zip(target.means, target.weights, strict=True):
                panel.annotate(f"{weight:.2f}", mean + jnp.array([0.0, 1.5]), ha="center", fontsize=7)
        save(figure, out, "mixture")
    return mass, shares, result


if __name__ == "__main__":
    run(main)
