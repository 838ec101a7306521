"""Eight schools in NumPyro, non-centred and centred, next to NumPyro's own NUTS.

    effects_j ~ N(theta_j, errors_j^2),    theta_j ~ N(mu, tau^2),    mu ~ N(0, 5^2),    tau ~ HalfCauchy(5)

Both ways of writing the model have one posterior and one evidence. NUTS runs on the non-centred one, which has no
funnel, and is the reference for both.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import pgps
from common import COLORS, chain_moments, panels, run, save, z_scores
from pgps import metrics

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
NAMES = ("mu", "tau", *(f"theta[{j}]" for j in range(8)))


def centred(errors: np.ndarray, effects: np.ndarray) -> None:
    """The schools' effects as they are."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(errors)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effects", dist.Normal(theta, errors), obs=effects)


def non_centred(errors: np.ndarray, effects: np.ndarray) -> None:
    """The schools' effects in units of their spread."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(errors)):
        theta = numpyro.deterministic("theta", mu + tau * numpyro.sample("z", dist.Normal(0, 1)))
        numpyro.sample("effects", dist.Normal(theta, errors), obs=effects)


def columns(variables: dict[str, jax.Array]) -> np.ndarray:
    """What both models have in common, along the last axis."""
    return np.concatenate([np.stack([variables["mu"], variables["tau"]], axis=-1), variables["theta"]], axis=-1)


def nuts(model: Callable, key: jax.Array, num_draws: int) -> np.ndarray:
    """Draws [chains, draws, variables] of four chains of NumPyro's own sampler."""
    kernel = NUTS(model, target_accept_prob=0.95)
    chains = MCMC(
        kernel, num_warmup=1000, num_samples=num_draws, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    chains.run(key, ERRORS, EFFECTS)
    return columns(chains.get_samples(group_by_chain=True))


def main(
    num_particles: int = 1000,
    seed: int = 0,
    out: Path | None = None,
    method: pgps.methods.AbstractMethod | None = None,
    num_draws: int = 2000,
) -> tuple[dict[str, np.ndarray], dict[str, pgps.Result]]:
    """Sample eight schools in NumPyro, non-centred and centred, next to NUTS.

    Returns the z-scores of both models' moments against NUTS, and the runs.
    """
    key, *keys = jax.random.split(jax.random.key(seed), 3)
    draws = nuts(non_centred, key, num_draws)
    reference = chain_moments(draws)
    scores, results = {}, {}
    for model, key in zip((non_centred, centred), keys, strict=True):
        name = model.__name__
        result = pgps.adapters.numpyro.sample(
            model, ERRORS, EFFECTS, key=key, num_particles=num_particles, method=method
        )
        found = metrics.moments(columns(result.particles), result.log_weights, result.families)
        scores[name], results[name] = z_scores(found, reference), result
        print(f"{name:12s} NUTS mean       sd | pgps mean       sd | z of mean  of sd")
        for j, variable in enumerate(NAMES):
            row = (reference.mean[j], reference.sd[j]), (found.mean[j], found.sd[j]), scores[name][:, j]
            print(f"{variable:12s} " + " | ".join(f"{a:9.2f} {b:8.2f}" for a, b in row))
        print(f"log evidence: {result.log_evidence:.3f} +- {result.log_evidence_error:.3f}\n")
    if out is not None:
        figure, axes = panels(2)
        for panel, (name, result) in zip(axes, results.items(), strict=True):
            variables = columns(result.resample(key, 1000))
            panel.plot(variables[:, 2], np.log(variables[:, 1]), ".", markersize=3, color=COLORS[0])
            panel.hlines(np.log(np.quantile(draws[..., 1], [0.05, 0.5, 0.95])), -20, 40, color=COLORS[1], linewidth=1)
            panel.set(title=name.replace("_", "-"), xlabel="theta[0]", ylabel="ln tau", xlim=(-20, 40), ylim=(-4, 4))
        save(figure, out, "eight_schools")
    return scores, results


if __name__ == "__main__":
    run(main)
