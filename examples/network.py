"""Bayesian networks that diagnose tumours, and how far to trust what they say, next to trained networks.

The posterior of a network with 30, 8 and 2 units, given a quarter of scikit-learn's breast cancer data, 142 rows. One
network is trained to the largest likelihood, one to the largest posterior density; many are sampled along the path,
without weights. All predict the other 427 rows.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax
from jaxtyping import PyTree

import pgps
from common import COLORS, panels, run, save
from pgps import metrics, targets


def trained(objective: Callable, start: PyTree, num_steps: int) -> PyTree:
    """The parameters of the largest objective, as far as Adam finds them, with a leading axis of one."""
    optimizer = optax.adam(1e-2)

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        network, state = carry
        updates, state = optimizer.update(jax.grad(lambda x: -objective(x))(network), state)
        return (optax.apply_updates(network, updates), state), None

    (network, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), None, num_steps)
    return jax.tree.map(lambda leaf: leaf[None], network)


def main(
    num_particles: int = 100,
    seed: int = 0,
    out: Path | None = None,
    num_steps: int = 2000,
) -> tuple[dict[str, np.ndarray], np.ndarray, pgps.Result]:
    """Sample Bayesian networks that diagnose tumours, next to two trained ones.

    Returns the predicted probabilities of each, the labels, and the run.
    """
    train, test = targets.split(targets.load_dataset("breast-cancer"), seed=0, test_fraction=0.75)
    posterior = targets.BNN(targets.perceptron((30, 8, 2)), train.features, train.labels, prior_scale=1.0)
    key, key_trained = jax.random.split(jax.random.key(seed))
    method = pgps.training_free(
        dt=0.1, langevin_steps=num_steps // 20, langevin_step_size=2e-3, final_langevin_steps=num_steps // 2
    )
    result = pgps.sample(posterior, posterior.prior, key=key, num_particles=num_particles, method=method)
    start = posterior.prior.sample(key_trained)
    objectives = {"largest likelihood": posterior.log_likelihood, "largest posterior": posterior}
    predictions = {
        name: posterior.network_predictions(trained(objective, start, num_steps), test.features)[0]
        for name, objective in objectives.items()
    }
    predictions[f"{num_particles} networks"] = posterior.predict(result, test.features).mean

    print(f"{'':18s} accuracy  neg. log-likelihood  calibration error  surer than 0.9  wrong of these")
    for name, p in predictions.items():
        functions = metrics.accuracy, metrics.negative_log_likelihood, metrics.calibration_error
        scores = [function(p, test.labels) for function in functions]
        sure = p.max(axis=1) > 0.9
        num_wrong = np.sum(p.argmax(axis=1)[sure] != test.labels[sure])
        print(f"{name:18s} {scores[0]:8.3f} {scores[1]:20.3f} {scores[2]:18.3f} {sure.sum():15d} {num_wrong:15d}")
    if out is not None:
        figure, axes = panels(3, width=3.2)
        for panel, color, (name, p) in zip(axes, (*COLORS[1:], COLORS[0]), predictions.items(), strict=True):
            table = metrics.reliability(p, test.labels)
            full = table.counts > 0
            panel.axline((0, 0), slope=1, color="grey", linewidth=0.8)
            panel.plot(table.confidence[full], table.accuracy[full], "o-", color=color)
            for x, y, num in zip(table.confidence[full], table.accuracy[full], table.counts[full], strict=True):
                panel.annotate(f" {num}", (x, y), va="top", fontsize=7)
            panel.set(title=name, xlabel="confidence", ylabel="share that is right", xlim=(0, 1.05), ylim=(0, 1.05))
        save(figure, out, "network")
    return predictions, test.labels, result


if __name__ == "__main__":
    run(main)
