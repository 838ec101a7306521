"""Kill a run again and again, and see that it ends with the same bits as one that was left alone: `pgps bench resume`.

A process samples with a checkpoint that it writes after every step. It is killed (SIGKILL) at a random moment after its
first write, the checkpoint is read, and another process goes on from it, until one gets to the end. Then particles,
weights, evidence, counters, trace and the whole last state are compared, bit for bit.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from pgps import recipes, steppers, storage, targets
from pgps.benchmarks.timing import environment, write
from pgps.checkpoint import Checkpoint
from pgps.methods import AbstractMethod, TemperedSMC
from pgps.result import PGPSWarning, Result, Status, load
from pgps.sample import sample

METHODS: dict[str, Callable[[], AbstractMethod]] = {
    "smc": lambda: TemperedSMC(steppers.Fixed(0.01)),
    "exact": lambda: recipes.exact(conditional_ess=0.999),
}
_NUM_PARTICLES = 200
# A process that has not written by then does not work.
_LONGEST_START = 600.0


class Preset(NamedTuple):
    """How often runs of which methods are killed."""

    methods: tuple[str, ...]
    num_kills: int


PRESETS = {"full": Preset(("smc", "exact"), 20), "smoke": Preset(("smc",), 3)}


class Fate(NamedTuple):
    """What became of the runs of one method.

    Attributes:
        kills: At which share of the steps each process was killed.
        drafts: How many were killed while they wrote.
        unreadable: How many left a checkpoint that cannot be read.
        lives: How many runs got to the end.
        differing: The names of all that differed from the run that was left alone.
    """

    kills: list[float]
    drafts: int
    unreadable: int
    lives: int
    differing: list[str]


def run(out: Path, quiet: bool, preset: Preset = PRESETS["full"], seed: int = 0) -> dict[str, Any]:
    """Kill, resume and compare, and write `result.json`."""
    record: dict[str, Any] = {"methods": {}, **environment()}
    for name in preset.methods:
        with tempfile.TemporaryDirectory() as folder:
            fate = torment(name, Path(folder), preset, np.random.default_rng(seed), quiet)
        record["methods"][name] = fate._asdict()
    write(out, record)
    return record


def format_table(record: dict[str, Any]) -> str:
    """One line per method."""
    return "\n".join(
        f"{name}: {len(fate['kills'])} kills, {fate['drafts']} of them during a write; {fate['unreadable']} unreadable "
        f"checkpoints; {fate['lives']} runs to the end, differing in: {', '.join(fate['differing']) or 'nothing'}"
        for name, fate in record["methods"].items()
    )


def torment(name: str, folder: Path, preset: Preset, rng: np.random.Generator, quiet: bool) -> Fate:
    """Kill runs of one method, so often as the preset says, and compare each that gets to its end."""
    alone, life = folder / "alone", folder / "killed"
    # The first one compiles what the others read from the cache, so that it does not tell how long they take.
    _live(name, folder / "first", None)
    seconds = _live(name, alone, None)
    assert seconds is not None
    expected = _all_of_it(alone)
    num_steps = len(expected["result/trace/t"])
    kills: list[float] = []
    drafts = unreadable = lives = 0
    differing: set[str] = set()
    while len(kills) < preset.num_kills or life.exists():
        # Moments of which all together take about as long as one run.
        delay = rng.uniform(0, 2 * seconds / (preset.num_kills + 1)) if len(kills) < preset.num_kills else None
        if _live(name, life, delay) is not None:
            found = _all_of_it(life)
            differing |= {key for key in expected | found if not _same(expected.get(key), found.get(key))}
            lives += 1
            shutil.rmtree(life)
            continue
        drafts += any(life.glob(".*.part"))
        try:
            record, _ = storage.read_file(life / "checkpoint")
            kills.append(record["num_rows"][0] / num_steps)
        except ValueError:
            unreadable += 1
            kills.append(math.nan)
            shutil.rmtree(life)
        if not quiet:
            print(f"{name}: kill {len(kills)} of {preset.num_kills}, {kills[-1]:.0%} done", flush=True)
    return Fate(kills, drafts, unreadable, lives, sorted(differing))


def work(name: str, folder: Path) -> None:
    """Sample with a checkpoint in `folder`, written after every step, and save the result there."""
    target, initial = targets.nine_gaussians()
    with warnings.catch_warnings(action="ignore", category=PGPSWarning):
        result = sample(
            target,
            initial,
            key=jax.random.key(0),
            num_particles=_NUM_PARTICLES,
            method=METHODS[name](),
            progress=False,
            # A callback makes each step a chunk of its own.
            callback=lambda _: None,
            checkpoint=Checkpoint(folder / "checkpoint", every=0),
        )
    if result.status != Status.COMPLETED:
        raise RuntimeError(f"the run did not complete: {result.warnings}")
    # A life may have been cut off while it wrote its result; the checkpoint has it all.
    shutil.rmtree(folder / "result", ignore_errors=True)
    result.save(folder / "result")


def _live(name: str, life: Path, delay: float | None) -> float | None:
    """Start or resume a run; returns the seconds from its first write to its last, or None if it was killed before.

    Args:
        name: The method.
        life: The folder of the run.
        delay: Seconds from the first write to the kill; None lets it live.
    """
    file = life / "checkpoint"
    before = _stamp(file)
    process = _start(name, life)
    try:
        give_up = time.perf_counter() + _LONGEST_START
        while process.poll() is None and _stamp(file) == before and time.perf_counter() < give_up:
            time.sleep(0.001)
        written = time.time()
        if delay is not None:
            time.sleep(delay)
            process.kill()
        code = process.wait()
    finally:
        process.kill()
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a run of {name} ended with exit code {code}; see what it printed")
    return max(file.stat().st_mtime - written, 0.0) if code == 0 else None


def _start(name: str, folder: Path) -> subprocess.Popen:
    # Compiled programs are shared, so that what is killed is sampling and not compilation.
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "programs")}
    cache |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return subprocess.Popen(
        [sys.executable, "-m", "pgps.benchmarks.resume", name, str(folder)], env={**os.environ, **cache}
    )


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _all_of_it(folder: Path) -> dict[str, Any]:
    """Everything that a run has computed, by name."""
    _, arrays = storage.read_file(folder / "checkpoint")
    found: dict[str, Any] = {f"checkpoint/{name}": array for name, array in arrays.items()}
    result = load(folder / "result")
    found |= {f"result/trace/{name}": column for name, column in result.trace.items()}
    return found | {f"result/{name}": getattr(result, name) for name in _COMPARED}


_COMPARED = [field for field in Result.__dataclass_fields__ if field not in ("trace", "provenance", "fitted")]


def _same(a: Any, b: Any) -> bool:
    """Whether two values agree in every bit."""
    if isinstance(a, jax.Array | np.ndarray) and isinstance(b, jax.Array | np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


def main(argv: Sequence[str]) -> None:
    """The process that is killed."""
    name, folder = argv
    work(name, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
