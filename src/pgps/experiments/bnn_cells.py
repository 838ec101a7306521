"""Cells of the BNN tables, in both protocols: networks sampled on a training part and judged on a test part.

`published` repeats the released code with its flaws (`published_bnn`). `corrected` samples the posterior itself, with
step sizes, alpha and beta chosen for each run by the negative log-likelihood on its training part: rates on each fold
of it in turn, since one fold's verdict on them is mostly chance, and then alpha and beta on the first one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pgps.experiments import published_bnn
from pgps.experiments.base import Cell, Record, cost, run_key
from pgps.experiments.classify import FOLLOW_A_PATH, HIDDEN, METHODS, RATE, Scale, Sizes, measure
from pgps.methods import AbstractMethod
from pgps.metrics import negative_log_likelihood
from pgps.result import Result, Status
from pgps.sample import sample
from pgps.targets import BNN, Dataset, perceptron, standardise

Protocol = Literal["published", "corrected"]
Parts = Callable[[int], tuple[Dataset, Dataset]]
"""The training and the test part of a seed, standardised."""

BATCH_SIZE = 100


@dataclass(frozen=True)
class Grid:
    """What tuning tries: factors of the usual rate first, then alpha and beta, for methods that follow a path.

    Attributes:
        rates: Factors of the usual rate.
        alphas: The path's alpha.
        betas: The path's beta.
        num_particles: Particles of a tuning run.
        sizes: How long it is, if it judges a rate. Large rates do better in short runs than in long ones.
        path_sizes: How long it is, if it judges alpha and beta.
        num_folds: Parts of the training rows, each of which is held out in turn.
    """

    rates: tuple[float, ...] = (0.25, 1.0, 4.0)
    alphas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    betas: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    num_particles: int = 20
    sizes: Sizes = field(default_factory=Sizes)
    path_sizes: Sizes = field(default_factory=lambda: Sizes(1000, 50, 500))
    num_folds: int = 2


@dataclass(frozen=True)
class Setting:
    """One cell of a table.

    Attributes:
        parts: The data.
        method: The sampler's name.
        num_particles: How many networks.
        prior_variance: Of each parameter, under the prior, from which particles start.
        sizes: How long the sampler runs.
        grid: What is tried before (`corrected`).
        step_size: The published step size (`published`).
        path: The published alpha and beta, or what is taken for them (`published`).
        prior_factor: What the released prior's log-density is off by (`published`).
    """

    parts: Parts
    method: str
    num_particles: int
    prior_variance: float
    sizes: Sizes
    grid: Grid
    step_size: float
    path: tuple[float, float] = (0.2, 0.8)
    prior_factor: float = 1.0


def bnn_cell(name: str, protocol: Protocol, setting: Setting) -> Cell:
    """A cell that samples networks for each seed in turn; one compilation serves all."""
    run_one = _run_published if protocol == "published" else _run_corrected

    def run(seeds: Sequence[int], progress: bool | None) -> Record:
        rows, arrays = [], {}
        for seed in seeds:
            start = time.perf_counter()
            probabilities, labels, row = run_one(setting, seed, progress)
            scores = _released_scores if protocol == "published" else measure
            row = {"seed": seed, **scores(probabilities, labels), **row, "seconds": time.perf_counter() - start}
            rows.append(row)
            arrays |= {f"probabilities{seed}": probabilities.astype(np.float16), f"labels{seed}": labels}
        return Record(rows, arrays)

    settings: dict[str, Any] = {
        "protocol": protocol,
        "method": setting.method,
        "num_particles": setting.num_particles,
        "prior_variance": setting.prior_variance,
        "sizes": setting.sizes._asdict(),
    }
    if protocol == "published":
        settings |= {"step_size": setting.step_size, "prior_factor": setting.prior_factor}
        settings |= {"path": setting.path} if setting.method in FOLLOW_A_PATH else {}
    else:
        settings |= {"batch_size": BATCH_SIZE, "rate": RATE, "grid": asdict(setting.grid)}
    return Cell(name, settings, run)


def _released_scores(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """As `measure`, with the likelihood through a second softmax, as the released code has it."""
    again = np.exp(probabilities) / np.sum(np.exp(probabilities), axis=1, keepdims=True)
    return measure(probabilities, labels) | {"nll": negative_log_likelihood(again, labels)}


def _run_published(setting: Setting, seed: int, progress: bool | None) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    del progress
    train, test = setting.parts(seed)
    posterior = published_bnn.Posterior(
        features=jnp.asarray(train.features, float),
        labels=jnp.asarray(train.labels),
        prior_variance=setting.prior_variance,
        prior_factor=setting.prior_factor,
        num_classes=train.num_classes,
        hidden=HIDDEN,
    )
    path = setting.path if setting.method in FOLLOW_A_PATH else ()
    particles = published_bnn.sample(
        setting.method,
        posterior,
        run_key(seed),
        setting.num_particles,
        jnp.asarray(setting.step_size),
        setting.sizes,
        *path,
    )
    if not bool(jnp.all(jnp.isfinite(particles))):
        raise FloatingPointError(f"{setting.method} diverged for seed {seed}")
    return published_bnn.predict(posterior, particles, test.features), test.labels, {}


def _run_corrected(setting: Setting, seed: int, progress: bool | None) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    train, test = setting.parts(seed)
    chosen = _tune(setting, train, seed)
    posterior = _posterior(setting, train)
    method = _method(setting, len(train.labels), setting.num_particles, setting.sizes, chosen)
    result = _sample(posterior, method, setting.num_particles, seed, progress)
    row = chosen | {name: value for name, value in cost(result).items() if name != "warnings"}
    return posterior.predict(result, test.features).mean, test.labels, row


def _tune(setting: Setting, train: Dataset, seed: int) -> dict[str, float]:
    """The rate, and alpha and beta where there is a path, that predict a held-out part of the training rows best."""
    grid = setting.grid

    def loss(chosen: dict[str, float], fold: int, sizes: Sizes) -> float:
        fitted, held_out = _fold(train, seed, fold, grid.num_folds)
        posterior = _posterior(setting, fitted)
        method = _method(setting, len(fitted.labels), grid.num_particles, sizes, chosen)
        result = _sample(posterior, method, grid.num_particles, seed, False)
        if result.status != Status.COMPLETED:
            return np.inf
        return negative_log_likelihood(posterior.predict(result, held_out.features).mean, held_out.labels)

    follows = setting.method in FOLLOW_A_PATH
    usual = {"alpha": 0.0, "beta": 1.0} if follows else {}
    rates = ({"rate": RATE * rate, **usual} for rate in grid.rates)
    folds = range(grid.num_folds)
    best = min(rates, key=lambda chosen: np.mean([loss(chosen, fold, grid.sizes) for fold in folds]))
    if follows:
        paths = ({**best, "alpha": alpha, "beta": beta} for alpha, beta in product(grid.alphas, grid.betas))
        best = min(paths, key=lambda chosen: loss(chosen, 0, grid.path_sizes))
    return best


def _fold(train: Dataset, seed: int, fold: int, num_folds: int) -> tuple[Dataset, Dataset]:
    """The training rows outside a fold, and those in it, standardised; folds are of one size, for one compilation."""
    rows = np.random.default_rng(seed).permutation(len(train.labels))
    size = len(rows) // num_folds
    held = np.s_[fold * size : (fold + 1) * size]
    fitted, held_out = train.part(np.delete(rows, held)), train.part(rows[held])
    features = standardise(fitted.features, held_out.features)
    return replace(fitted, features=features[0]), replace(held_out, features=features[1])


def _posterior(setting: Setting, train: Dataset) -> BNN:
    network = perceptron((train.features.shape[1], HIDDEN, train.num_classes))
    scale = setting.prior_variance**0.5
    return BNN(network, train.features, train.labels, prior_scale=scale, batch_size=BATCH_SIZE)


def _method(
    setting: Setting, num_rows: int, num_particles: int, sizes: Sizes, chosen: dict[str, float]
) -> AbstractMethod:
    path = {name: chosen[name] for name in ("alpha", "beta") if name in chosen}
    return METHODS[setting.method](Scale(num_rows, num_particles, chosen["rate"]), sizes, **path)


def _sample(posterior: BNN, method: AbstractMethod, num_particles: int, seed: int, progress: bool | None) -> Result:
    result = sample(
        posterior,
        posterior.prior,
        key=jax.random.fold_in(run_key(seed), num_particles),
        num_particles=num_particles,
        method=method,
        progress=progress,
    )
    if result.status == Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result
