"""A mixture in PyMC whose two components are exchangeable: both labellings have half of the mass.

    y_i ~ w_0 N(m_0, s_0^2) + w_1 N(m_1, s_1^2),    w ~ Dirichlet(2, 2),    m_k ~ N(0, 5^2),    s_k ~ HalfNormal(2)

Whoever swaps the components has the same density again. A chain of NUTS finds one labelling.
"""

from pathlib import Path
from typing import Literal

import jax
import numpy as np
import pymc as pm

import pgps
from common import COLORS, chain_moments, panels, run, save, z_scores
from pgps import metrics


def two_components(y: np.ndarray) -> pm.Model:
    """The model."""
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.full(2, 2.0))
        means = pm.Normal("means", 0.0, 5.0, shape=2)
        scales = pm.HalfNormal("scales", 2.0, shape=2)
        pm.NormalMixture("y", weights, means, scales, observed=y)
    return model


def main(
    num_particles: int = 1000,
    seed: int = 0,
    out: Path | None = None,
    method: pgps.methods.AbstractMethod | None = None,
    num_draws: int = 2000,
    nuts_sampler: Literal["pymc", "numpyro"] = "pymc",
) -> tuple[metrics.Moments, float, np.ndarray, pgps.Result]:
    """Sample a PyMC mixture with exchangeable components, next to one chain of NUTS.

    Returns the mass of m_0 < m_1, its share of the chain, z-scores of what has no labels, and the run.
    """
    rng = np.random.default_rng(0)
    model = two_components(np.concatenate([rng.normal(-2.0, 1.0, 40), rng.normal(2.0, 0.7, 20)]))
    key, key_draws = jax.random.split(jax.random.key(seed))
    result = pgps.adapters.pymc.sample(model, key=key, num_particles=num_particles, method=method)
    with model:
        chain = pm.sample(
            num_draws,
            tune=1000,
            chains=1,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
            nuts_sampler=nuts_sampler,
        )
    particles, draws = np.asarray(result.particles["means"]), chain["posterior"]["means"].values

    mass = metrics.moments(particles[:, 0] < particles[:, 1], result.log_weights, result.families)
    share = float(np.mean(draws[..., 0] < draws[..., 1]))
    print(f"mass of m_0 < m_1: pgps {mass.mean:.3f} +- {mass.mean_error:.3f}, the truth is 0.5; NUTS {share:.3f}")
    found = metrics.moments(np.sort(particles, axis=-1), result.log_weights, result.families)
    reference = chain_moments(np.sort(draws, axis=-1))
    scores = z_scores(found, reference)
    for k, name in enumerate(("smaller mean", "larger mean")):
        print(
            f"{name:12s}: pgps {found.mean[k]:.3f} (sd {found.sd[k]:.3f}), NUTS {reference.mean[k]:.3f} "
            f"(sd {reference.sd[k]:.3f}), z {scores[0, k]:.1f} and {scores[1, k]:.1f}"
        )
    print(f"log evidence: {result.log_evidence:.3f} +- {result.log_evidence_error:.3f}")
    if out is not None:
        figure, axes = panels(2)
        axes[0].plot(*draws[0, :1000].T, ".", markersize=3, color=COLORS[1])
        axes[1].plot(*np.asarray(result.resample(key_draws, 1000)["means"]).T, ".", markersize=3, color=COLORS[0])
        for panel, title in zip(axes, ("NUTS, one chain", "pgps, resampled"), strict=True):
            panel.axline((0, 0), slope=1, color="grey", linewidth=0.8)
            panel.set(title=title, xlabel="m_0", ylabel="m_1", xlim=(-4, 4), ylim=(-4, 4), aspect="equal")
        save(figure, out, "label_switching")
    return mass, share, scores, result


if __name__ == "__main__":
    run(main)
