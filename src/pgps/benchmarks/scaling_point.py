"""One measurement of `pgps bench scaling`, in a process of its own: `python -m pgps.benchmarks.scaling_point ...`.

So each has its own peak of memory, and as many devices as it asks for. The target has two Gaussian modes in any
dimension, which cost next to nothing, or is a logistic regression with as many rows of data as are asked for. Timed is
one compiled step, from the same state again and again: the least of its times is what an undisturbed machine would
show. Where `steps` is given, `pgps.sample` takes so many, and memory is read after each.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import adjustments, fields, recipes, trainers
from pgps.density import Problem
from pgps.initial import Normal
from pgps.lanes import placed, without_weak_types
from pgps.methods import SVGD, AbstractMethod
from pgps.result import PGPSWarning
from pgps.run import Snapshot
from pgps.sample import sample
from pgps.settings import with_arrays
from pgps.spread import Spread
from pgps.targets.logistic import LogisticRegression

# Steps before the one that is timed, and the seconds and calls that are enough.
_WARM_UP = 1
_ENOUGH_SECONDS = 0.5
_MOST_CALLS = 50
# Particles whose regression is worked out at once.
_BATCH_SIZE = 1000
# Where memory is watched, glibc returns arrays of a mebibyte and more as soon as they are freed. Left alone it raises
# that limit to 32 MiB, and keeps what lies below it for later, in pieces that may not fit.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
# A run whose memory is watched ends after so many seconds, with the steps that it has taken by then.
_LONGEST_RUN = 900.0


class Point(NamedTuple):
    """What is measured.

    Attributes:
        method: A name among `METHODS`.
        num_particles: N.
        dim: D.
        width: Hidden units of the network, for `mlp`.
        devices: Devices that share the particles.
        steps: Steps to take while memory is read; 0 times one step instead.
        rows: Rows of data of a regression; 0 is the target with two modes.
    """

    method: str
    num_particles: int = 1000
    dim: int = 10
    width: int = 64
    devices: int = 1
    steps: int = 0
    rows: int = 0


def _affine(rank: int) -> AbstractMethod:
    # A field of any use is used, so that its evaluation counts; and as many gradient calls are made in any dimension.
    moves = adjustments.HMC(0.5, num_leapfrog=3, precondition=True, local=True, jitter=0.5)
    field, trainer = fields.Affine(full_up_to=0, symmetric_up_to=0, rank=rank), trainers.LeastSquares(least_r2=0.0)
    return recipes.exact(field=field, trainer=trainer, moves=moves)


METHODS: dict[str, Callable[[Point], AbstractMethod]] = {
    # Where memory is watched steps are so short that there are as many as asked for.
    "exact": lambda point: recipes.exact(
        conditional_ess=0.99995 if point.steps else 0.999, max_steps=max(point.steps, 1)
    ),
    "diagonal": lambda _: _affine(rank=0),
    "low-rank": lambda _: _affine(rank=8),
    "mlp": lambda point: recipes.paper(width=point.width, max_training_steps=20, threshold=0),
    "kernel": lambda point: recipes.exact(field=fields.Kernel(), max_steps=max(point.steps, 1)),
    "svgd": lambda point: SVGD(num_steps=max(point.steps, 1)),
    "training-free": lambda _: recipes.training_free(dt=0.1, langevin_steps=2),
}


def measured(point: Point, repeats: int) -> dict[str, Any]:
    """Measure in a new process; returns what it found, with the point."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={point.devices}"
    settings = {"XLA_FLAGS": flags.strip()} | (_ALLOCATOR if point.steps else {})
    command = [sys.executable, "-m", "pgps.benchmarks.scaling_point", json.dumps(point), str(repeats)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeError(f"the measurement of {point} failed: {reason}")
    return point._asdict() | json.loads(done.stdout.splitlines()[-1])


def logdensity(x: Float[Array, " dim"]) -> Scalar:
    """Two Gaussian modes, at 2 and -2 in each coordinate, with standard deviations of 1 and 1/2 in turn."""
    scale = jnp.where(jnp.arange(x.size) % 2, 0.5, 1.0)
    return jnp.logaddexp(*[-0.5 * jnp.sum(((x - mean) / scale) ** 2) for mean in (2.0, -2.0)])


def _regression(num_rows: int, dim: int) -> LogisticRegression:
    """Standard normal rows, with labels that weights of 1 give them."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((num_rows, dim - 1))
    labels = rng.random(num_rows) < 1 / (1 + np.exp(-features.sum(axis=1)))
    return LogisticRegression(features, labels, prior_scale=3.0)


def step_seconds(point: Point, repeats: int) -> dict[str, Any]:
    """The seconds of one step, and the gradient calls per particle in it."""
    mesh = jax.make_mesh((point.devices,), ("particles",)) if point.devices > 1 else None
    # A million particles times a thousand rows would be 4 GB, for each of several arrays.
    spread = Spread(mesh, _BATCH_SIZE if point.rows else None)
    target = _regression(point.rows, point.dim) if point.rows else logdensity
    problem = Problem.of(target, Normal(0.0, 3.0, shape=(point.dim,)), spread)
    method = with_arrays(METHODS[point.method](point), problem.structure.dtype)

    @eqx.filter_jit
    def begin(key: Array) -> Any:
        return placed(without_weak_types(method.init(key, problem, point.num_particles)), spread)

    @eqx.filter_jit
    def step(key: Array, state: Any) -> Any:
        return placed(without_weak_types(method.step(key, state, problem)[0]), spread)

    state = begin(jax.random.key(0))
    for k in range(_WARM_UP):
        state = step(jax.random.key(k + 1), state)
    key, seconds, after = jax.random.key(_WARM_UP + 1), [], state
    while len(seconds) < repeats or (sum(seconds) < _ENOUGH_SECONDS * repeats and len(seconds) < _MOST_CALLS):
        start = time.perf_counter()
        after = jax.block_until_ready(step(key, state))
        seconds.append(time.perf_counter() - start)
    calls = int(after.evaluations.total) - int(state.evaluations.total)
    return {"seconds": min(seconds), "median_seconds": float(np.median(seconds)), "calls": calls, "count": len(seconds)}


def step_memory(point: Point) -> dict[str, Any]:
    """Resident memory in MiB after each step, and its peak so far."""
    now, peak = [], []

    def look(_: Snapshot) -> None:
        words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        now.append(int(words["VmRSS"].split()[0]) / 1024)
        peak.append(int(words["VmHWM"].split()[0]) / 1024)

    start = time.perf_counter()
    with warnings.catch_warnings(action="ignore", category=PGPSWarning):
        result = sample(
            logdensity,
            Normal(0.0, 3.0, shape=(point.dim,)),
            key=jax.random.key(0),
            num_particles=point.num_particles,
            method=METHODS[point.method](point),
            progress=False,
            callback=look,
            max_seconds=_LONGEST_RUN,
        )
    # The first snapshot is that of the start.
    return {
        "mebibytes": now[1:],
        "peak_mebibytes": peak[1:],
        "t": result.t,
        "seconds_in_all": time.perf_counter() - start,
    }


def main(argv: Sequence[str]) -> None:
    """Measure one point, and print what was found as JSON."""
    point, repeats = Point(*json.loads(argv[0])), int(argv[1])
    print(json.dumps(step_memory(point) if point.steps else step_seconds(point, repeats)))


if __name__ == "__main__":
    main(sys.argv[1:])
