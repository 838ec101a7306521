"""`pgps bench training-step`: what one training step of the paper's field costs, next to eager PyTorch.

The same step in all columns: the loss of Eq. 6 for one hidden layer of sigmoids, its gradient, and Adam. PyTorch runs
it twice: with the divergence as the published code computes it, by automatic differentiation in its 1-D experiments and
elsewhere as appendix B prints it, a product of N x H x D entries that is summed; and with the sum over D taken first,
as this library does. Then the whole of a mode-discovery run.
"""

import time
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgps import fields, recipes, storage, targets, trainers
from pgps.benchmarks.timing import Steps, environment, milliseconds, torch_version, write
from pgps.density import Population
from pgps.programs import compiler_options
from pgps.result import PGPSWarning, Status
from pgps.sample import sample


class Shape(NamedTuple):
    """A training step's size: particles, dimensions and hidden units."""

    num_particles: int
    dim: int
    width: int


class Preset(NamedTuple):
    """How much is measured.

    Attributes:
        shapes: The training steps.
        num_particles: The mode-discovery run's particles.
        max_training_steps: Its training steps per time step, at most.
        seconds: The least duration of one measurement.
    """

    shapes: tuple[Shape, ...]
    num_particles: int
    max_training_steps: int
    seconds: float


FULL = Preset(
    shapes=(Shape(5000, 1, 64), Shape(1000, 8, 128), Shape(200, 2, 64), Shape(100, 2018, 128)),
    num_particles=5000,
    max_training_steps=1000,
    seconds=0.3,
)
SMOKE = Preset(shapes=(Shape(50, 1, 8), Shape(20, 3, 8)), num_particles=100, max_training_steps=5, seconds=0.01)
PRESETS = {"full": FULL, "smoke": SMOKE}


def run(out: Path | None, quiet: bool, repeats: int = 3, preset: Preset = FULL) -> dict[str, Any]:
    """Measure, and write `result.json` into the folder `out` if one is given.

    Args:
        out: A new or empty folder, or None to write nothing.
        quiet: Whether to say nothing about the progress.
        repeats: How often each figure is measured; the record holds the median.
        preset: How much is measured.
    """
    if out is not None:
        storage.check_free(out)
    rows = []
    for shape in preset.shapes:
        if not quiet:
            print(f"training step at N, D, H = {tuple(shape)}", flush=True)
        rows.append({"shape": list(shape), **_measure(shape, repeats, preset.seconds)})
    if not quiet:
        print("mode discovery, setting B, psi = 0.05", flush=True)
    record = {
        "command": "pgps bench training-step",
        "milliseconds_per_training_step": rows,
        "mode_discovery": [_mode_discovery(seed, preset) for seed in range(repeats)],
        "repeats": repeats,
        "preset": preset._asdict(),
        **environment(torch=torch_version()),
    }
    if out is not None:
        write(out, record)
    return record


def format_table(record: dict[str, Any]) -> str:
    """The record as a text table."""
    lines = [f"{'N, D, H':>16} {'pgps':>9} {'PyTorch, as published':>22} {'PyTorch, sum first':>19}   ms per step"]
    for row in record["milliseconds_per_training_step"]:
        cells = [f"{row['pgps']:9.3f}"]
        for name, width in (("torch_published", 22), ("torch_sum_first", 19)):
            peer = row[name]
            text = "-" if peer is None else f"{peer:.3f} ({peer / row['pgps']:.1f}x)"
            cells.append(f"{text:>{width}}")
        lines.append(f"{', '.join(map(str, row['shape'])):>16} " + " ".join(cells))
    for done in record["mode_discovery"]:
        lines.append(
            f"mode discovery B, psi 0.05, seed {done['seed']}: {done['seconds']:.1f} s after compilation, "
            f"{done['training_steps']} training steps, score_1 = {done['score_1']:.3f}"
        )
    if record["versions"]["torch"] is None:
        lines.append("PyTorch is not installed, so its columns are empty; run: pip install 'pgps[bench]'")
    return "\n".join(lines)


def _measure(shape: Shape, repeats: int, least: float) -> dict[str, float | None]:
    candidates = {"pgps": _pgps_steps(shape)}
    if torch_version() is not None:
        candidates["torch_published"] = _torch_steps(shape, sum_first=False)
        candidates["torch_sum_first"] = _torch_steps(shape, sum_first=True)
    measured = map(median, milliseconds(list(candidates.values()), repeats, least))
    return {"torch_published": None, "torch_sum_first": None} | dict(zip(candidates, measured, strict=True))


def _numbers(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal particles, and a time derivative for each."""
    generator = np.random.default_rng(0)
    particles = generator.standard_normal((shape.num_particles, shape.dim), dtype=np.float32)
    return particles, generator.standard_normal(shape.num_particles, dtype=np.float32)


def _pgps_steps(shape: Shape) -> Steps:
    """The library's own trainer, on a population with the scores of a standard Gaussian."""
    particles, derivative = map(jnp.asarray, _numbers(shape))
    population = Population(particles, derivative, -particles, derivative)
    field = fields.MLP(shape.width)
    params = field.init(jax.random.key(0), shape.dim, particles.dtype)
    trainer = trainers.Gradient(threshold=0.0)

    # Everything is an argument: what a program closes over, XLA would fold into it.
    @partial(jax.jit, compiler_options=compiler_options())
    def train(max_steps: jax.Array, population: Population, params: Any, memory: Any) -> jax.Array:
        limited = eqx.tree_at(lambda trainer: trainer.max_steps, trainer, max_steps)
        *_, training = limited.fit(jax.random.key(1), jnp.zeros(()), population, field, params, memory)
        return training.loss

    def steps(count: int) -> float:
        return float(train(jnp.asarray(count), population, params, memory))

    memory = trainer.init(params)
    return steps


def _torch_steps(shape: Shape, sum_first: bool) -> Steps:
    """The same step in eager PyTorch."""
    import torch

    particles, derivative = (torch.from_numpy(array) for array in _numbers(shape))
    by_autograd = shape.dim == 1 and not sum_first
    particles.requires_grad_(by_autograd)
    score, target = -particles.detach(), derivative - derivative.mean()
    inner, outer = torch.nn.Linear(shape.dim, shape.width), torch.nn.Linear(shape.width, shape.dim)
    optimizer = torch.optim.Adam([*inner.parameters(), *outer.parameters()], lr=1e-2)

    def step() -> float:
        hidden = torch.sigmoid(inner(particles))
        velocity = outer(hidden)
        slope, product = hidden * (1 - hidden), inner.weight * outer.weight.t()
        if by_autograd:
            divergence = torch.autograd.grad(velocity.sum(), particles, create_graph=True)[0].squeeze(1)
        elif sum_first:
            divergence = slope @ product.sum(dim=1)
        else:
            divergence = (slope.unsqueeze(2) * product.unsqueeze(0)).sum(dim=(1, 2))
        loss = (((score * velocity).sum(dim=1) + divergence + target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # The published loop reads the loss at each step, to compare it with its threshold.
        return loss.item()

    def steps(count: int) -> float:
        return [step() for _ in range(count)][-1]

    return steps


def _mode_discovery(seed: int, preset: Preset) -> dict[str, Any]:
    """The paper's mode discovery (protocols: setting B) from start to end, compiled beforehand by a run of one step."""
    target, initial = targets.mode_discovery()
    method = recipes.paper(alpha=1.0, beta=0.8, psi=0.05, max_training_steps=preset.max_training_steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PGPSWarning)
        for candidate in (eqx.tree_at(lambda method: method.max_steps, method, 1), method):
            start = time.perf_counter()
            key = jax.random.key(seed)
            result = sample(
                target, initial, key=key, num_particles=preset.num_particles, method=candidate, progress=False
            )
            seconds = time.perf_counter() - start
    if result.status != Status.COMPLETED:
        raise RuntimeError(f"the mode-discovery run did not complete: {result.warnings}")
    return {
        "seed": seed,
        "seconds": seconds,
        "time_steps": len(result.trace["t"]),
        "training_steps": int(result.trace["training_steps"].sum()),
        "score_1": float(np.mean(result.particles > 5)),
    }
