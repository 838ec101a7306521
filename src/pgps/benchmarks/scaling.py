"""`pgps bench scaling`: how the cost of a step grows with particles, dimensions, hidden units and devices, and memory.

Seconds per step along one size at a time, with the others held, and the exponent b of a fit

    ln seconds = a + b ln size,

by least squares, with its standard error. Then the resident memory of long runs, step by step. Each measurement is a
process of its own: see `scaling_point`.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pgps import storage
from pgps.benchmarks.scaling_point import Point, measured
from pgps.benchmarks.timing import environment, write


class Sweep(NamedTuple):
    """Points that differ in one size alone; `size` is that field of `Point`."""

    name: str
    size: str
    points: tuple[Point, ...]


class Preset(NamedTuple):
    """What is timed, the runs whose memory is watched, and the step from which it should be flat."""

    sweeps: tuple[Sweep, ...]
    memory: tuple[Point, ...]
    settled: int


def _sweep(name: str, size: str, values: Sequence[int], point: Point) -> Sweep:
    return Sweep(name, size, tuple(point._replace(**{size: value}) for value in values))


PRESETS = {
    "full": Preset(
        sweeps=(
            _sweep("particles, exact", "num_particles", (10**3, 10**4, 10**5, 10**6), Point("exact")),
            _sweep(
                "particles, exact, a regression with 1000 rows",
                "num_particles",
                (10**3, 10**4, 10**5, 10**6),
                Point("exact", rows=1000),
            ),
            _sweep("dimensions, diagonal field", "dim", (10, 10**2, 10**3, 10**4), Point("diagonal")),
            _sweep("dimensions, low-rank field", "dim", (10, 10**2, 10**3, 10**4), Point("low-rank")),
            _sweep("hidden units, 20 training steps", "width", (16, 64, 256, 1024), Point("mlp")),
            _sweep("devices, exact", "devices", (1, 2, 4), Point("exact", 10**5)),
        ),
        memory=(
            Point("exact", 10**6, steps=100),
            Point("exact", 10**5, steps=100),
            Point("svgd", 20_000, steps=5),
            Point("kernel", 20_000, steps=20),
        ),
        settled=10,
    ),
    "smoke": Preset(
        sweeps=(
            _sweep("particles", "num_particles", (100, 200), Point("training-free")),
            _sweep("particles, a regression with 5 rows", "num_particles", (100, 200), Point("training-free", rows=5)),
        ),
        memory=(Point("svgd", 50, steps=4),),
        settled=2,
    ),
}


def run(
    out: Path | None,
    quiet: bool,
    repeats: int = 3,
    preset: Preset = PRESETS["full"],
    measure: Callable[[Point, int], dict[str, Any]] = measured,
) -> dict[str, Any]:
    """Measure, and write `result.json` into the folder `out` if one is given.

    Args:
        out: A new or empty folder, or None to write nothing.
        quiet: Whether to say nothing about the progress.
        repeats: How often each step is timed, at least; the least time counts.
        preset: What is measured.
        measure: Measures one point, so many times.
    """
    if out is not None:
        storage.check_free(out)

    def look(point: Point) -> dict[str, Any]:
        if not quiet:
            print(f"{point.method}: N = {point.num_particles}, D = {point.dim}, devices = {point.devices}", flush=True)
        return measure(point, repeats)

    sweeps = []
    for sweep in preset.sweeps:
        rows = [look(point) for point in sweep.points]
        fit = exponent([row[sweep.size] for row in rows], [row["seconds"] for row in rows])
        sweeps.append({"name": sweep.name, "size": sweep.size, **fit, "points": rows})
    record = {
        "command": "pgps bench scaling",
        "sweeps": sweeps,
        "memory": [_summarised(look(point), preset.settled) for point in preset.memory],
        "repeats": repeats,
        **environment(),
    }
    if out is not None:
        write(out, record)
    return record


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> dict[str, float | None]:
    """The exponent of a power law by least squares on logarithms, its standard error, and the factor at size 1."""
    x, y = np.log(sizes), np.log(seconds)
    centered = x - x.mean()
    slope = float(centered @ y / (centered @ centered))
    left = y - y.mean() - slope * centered
    # Two points lie on a line, and tell nothing of the error.
    error = math.sqrt(float(left @ left) / (len(x) - 2) / float(centered @ centered)) if len(x) > 2 else None
    return {"exponent": slope, "standard_error": error, "factor": math.exp(y.mean() - slope * x.mean())}


def _summarised(row: dict[str, Any], settled: int) -> dict[str, Any]:
    """The row with its peak, and by how much it grew after the step by which it should have settled."""
    peaks = row["peak_mebibytes"]
    settled = min(settled, len(peaks))
    return {**row, "peak": peaks[-1], "settled_step": settled, "growth": peaks[-1] - peaks[settled - 1]}


def format_table(record: dict[str, Any]) -> str:
    """The record as a text table."""
    lines = []
    for sweep in record["sweeps"]:
        error = "" if sweep["standard_error"] is None else f" +- {sweep['standard_error']:.3f}"
        lines.append(f"{sweep['name']}: exponent {sweep['exponent']:.3f}{error}")
        lines += [
            f"{row[sweep['size']]:>12} {row['seconds']:12.4g} s per step, {row['calls']} gradient calls"
            for row in sweep["points"]
        ]
    for row in record["memory"]:
        lines.append(
            f"{row['method']}, N = {row['num_particles']}, D = {row['dim']}: peak {row['peak']:.0f} MiB after "
            f"{len(row['peak_mebibytes'])} steps, {row['growth']:+.0f} MiB since step {row['settled_step']}"
        )
    return "\n".join(lines)
