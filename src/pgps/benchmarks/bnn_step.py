"""`pgps bench bnn-step`: what one PGPS iteration on Bayesian networks costs, next to an eager PyTorch loop over them.

An iteration evaluates the path at every particle, its score and its time derivative, on a minibatch of its own, and
takes a Langevin step. The PyTorch columns do it network by network: forward, cross-entropy, backward, read the
gradient. One has a single pass for both, as we have; the other two of them, each with a batch of its own, as the
released code has.
"""

from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgps import paths, storage, targets
from pgps.adjustments.langevin import langevin_step
from pgps.benchmarks.timing import Steps, environment, milliseconds, torch_version, write
from pgps.density import Problem
from pgps.noise import fold_in, split

T, STEP_SIZE, PRIOR_VARIANCE = 0.5, 1e-4, 0.5


class Shape(NamedTuple):
    """Sizes: particles, training rows, features, hidden units, classes, rows of a minibatch."""

    num_particles: int
    num_rows: int
    num_features: int
    hidden: int
    num_classes: int
    batch_size: int


class Preset(NamedTuple):
    """What is measured, and the least seconds of one measurement."""

    shapes: dict[str, Shape]
    seconds: float


FULL = Preset(
    {
        "SONAR": Shape(100, 104, 60, 32, 2, 100),
        "AUSTRALIAN": Shape(100, 345, 14, 32, 2, 100),
        "COVERTYPE": Shape(100, 4000, 54, 32, 7, 100),
        "MNIST": Shape(10, 60_000, 784, 32, 10, 100),
    },
    0.5,
)
SMOKE = Preset({"tiny": Shape(4, 30, 3, 4, 2, 10)}, 0.01)
PRESETS = {"full": FULL, "smoke": SMOKE}


def run(out: Path | None, quiet: bool, repeats: int = 5, preset: Preset = FULL) -> dict[str, Any]:
    """Measure, and write `result.json` into the folder `out` if one is given.

    Args:
        out: A new or empty folder, or None to write nothing.
        quiet: Whether to say nothing about the progress.
        repeats: How often each figure is measured; the record holds the median.
        preset: What is measured.
    """
    if out is not None:
        storage.check_free(out)
    rows = []
    for name, shape in preset.shapes.items():
        if not quiet:
            print(f"{name}: {shape.num_particles} networks", flush=True)
        rows.append({"set": name, "shape": shape._asdict(), **_measure(shape, repeats, preset.seconds)})
    record = {
        "command": "pgps bench bnn-step",
        "milliseconds_per_iteration": rows,
        "repeats": repeats,
        **environment(torch=torch_version()),
    }
    if out is not None:
        write(out, record)
    return record


def format_table(record: dict[str, Any]) -> str:
    """The record as a text table."""
    lines = [
        f"{'set':>12} {'networks':>9} {'one batch':>10} {'batch each':>11} {'PyTorch':>16} {'as released':>16}   ms"
    ]
    for row in record["milliseconds_per_iteration"]:
        own, cells = row["batch_each"], [f"{row['one_batch']:>10.2f} {row['batch_each']:>11.2f}"]
        for peer in (row["torch_loop"], row["torch_released"]):
            cells.append(f"{'-' if peer is None else f'{peer:.1f} ({peer / own:.1f}x)':>16}")
        lines.append(f"{row['set']:>12} {row['shape']['num_particles']:>9} {' '.join(cells)}")
    lines.append("Ratios are to a batch for each network, which is what the loops have.")
    if record["versions"]["torch"] is None:
        lines.append("PyTorch is not installed, so its columns are empty; run: pip install 'pgps[bench]'")
    return "\n".join(lines)


def _measure(shape: Shape, repeats: int, least: float) -> dict[str, float | None]:
    candidates = {"one_batch": _pgps_steps(shape, False), "batch_each": _pgps_steps(shape, True)}
    if torch_version() is not None:
        candidates["torch_loop"] = _torch_steps(shape, passes=1)
        candidates["torch_released"] = _torch_steps(shape, passes=2)
    measured = map(median, milliseconds(list(candidates.values()), repeats, least))
    return {"torch_loop": None, "torch_released": None} | dict(zip(candidates, measured, strict=True))


def _rows(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((shape.num_rows, shape.num_features), dtype=np.float32)
    return features, generator.integers(0, shape.num_classes, shape.num_rows)


def _pgps_steps(shape: Shape, per_particle: bool) -> Steps:
    """The library's own path, posterior and Langevin step."""
    posterior = targets.BNN(
        targets.perceptron((shape.num_features, shape.hidden, shape.num_classes)),
        *_rows(shape),
        prior_scale=PRIOR_VARIANCE**0.5,
        batch_size=shape.batch_size,
        per_particle=per_particle,
    )
    problem = Problem.of(posterior, posterior.prior)
    particles = problem.draw(jax.random.key(0), shape.num_particles)
    path = paths.LogWeightedShrinkage(0.2, 0.8, center=0.0)

    @eqx.filter_jit
    def iterate(count: jax.Array, particles: jax.Array, problem: Problem) -> jax.Array:
        def step(k: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            particles, total = carry
            key_batch, key_noise = split(fold_in(jax.random.key(1), k))
            population = paths.evaluate(path, jnp.asarray(T), particles, problem, key_batch)
            moved = langevin_step(key_noise, particles, population.score, STEP_SIZE)
            return moved, total + jnp.sum(population.time_derivative)

        particles, total = jax.lax.fori_loop(0, count, step, (particles, jnp.zeros(())))
        return jnp.sum(particles) + total

    return lambda count: float(iterate(jnp.asarray(count), particles, problem))


def _torch_steps(shape: Shape, passes: int) -> Steps:
    """The same iteration, one network after the other, in eager PyTorch."""
    import torch

    features, labels = (torch.from_numpy(array) for array in _rows(shape))
    inputs, hidden, classes = shape.num_features, shape.hidden, shape.num_classes
    sizes = [inputs * hidden, hidden, hidden * classes, classes]
    torch.manual_seed(0)
    particles = PRIOR_VARIANCE**0.5 * torch.randn(shape.num_particles, sum(sizes))
    alpha, beta = 0.2, 0.8
    a, b = 1 - alpha * T, beta + (1 - beta) * T

    def likelihood(x: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        """A network's log-likelihood, and its gradient."""
        x = x.clone().requires_grad_(True)
        W1, b1, W2, b2 = torch.split(x, sizes)
        rows = torch.randint(shape.num_rows, (shape.batch_size,))
        first = torch.sigmoid(features[rows] @ W1.reshape(inputs, hidden) + b1)
        outputs = first @ W2.reshape(hidden, classes) + b2
        loss = torch.nn.functional.cross_entropy(outputs, labels[rows], reduction="sum")
        loss.backward()
        assert x.grad is not None
        factor = -shape.num_rows / shape.batch_size
        return factor * loss.detach(), factor * x.grad

    def likelihoods(x: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        values, gradients = zip(*[likelihood(particle / b) for particle in x], strict=True)
        return torch.stack(values), torch.stack(gradients)

    def steps(count: int) -> float:
        x, total = particles, torch.zeros(())
        for _ in range(count):
            value, gradient = likelihoods(x)
            score_0, score_1 = -a * x / PRIOR_VARIANCE, gradient - x / b / PRIOR_VARIANCE
            score = (1 - T) * a * score_0 + T / b * score_1
            if passes == 2:
                value, gradient = likelihoods(x)
                score_1 = gradient - x / b / PRIOR_VARIANCE
            log_ratio = value - ((x / b) ** 2 - (a * x) ** 2).sum(1) / (2 * PRIOR_VARIANCE)
            moved = alpha * (1 - T) * score_0 + (1 - beta) * T / b**2 * score_1
            total = total + (log_ratio - (x * moved).sum(1)).sum()
            x = x + STEP_SIZE * score + (2 * STEP_SIZE) ** 0.5 * torch.randn_like(x)
        return float(x.sum() + total)

    return steps
