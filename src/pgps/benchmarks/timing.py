"""What benchmarks share: a clock for compiled steps, a note on the machine, and the file that they write."""

import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from pgps._version import __version__
from pgps.programs import THREADS_VARIABLE

Steps = Callable[[int], float]
"""Takes so many steps, each of which depends on the last, and returns a number that depends on them."""


def milliseconds(candidates: Sequence[Steps], repeats: int, least: float) -> list[list[float]]:
    """Milliseconds per step of each candidate, from several runs that take turns, each of at least `least` seconds.

    What else the machine does comes and goes, so figures that are to be compared belong to one turn.
    """
    counts = [_enough(steps, least) for steps in candidates]
    turns = [
        [1e3 * _seconds(steps, count) / count for steps, count in zip(candidates, counts, strict=True)]
        for _ in range(repeats)
    ]
    return [list(column) for column in zip(*turns, strict=True)]


def _enough(steps: Steps, least: float) -> int:
    """How many steps take so many seconds."""
    steps(2)
    count, seconds = 2, 0.0
    while seconds < least:
        count *= 2
        seconds = _seconds(steps, count)
    return count


def _seconds(steps: Steps, count: int) -> float:
    start = time.perf_counter()
    steps(count)
    return time.perf_counter() - start


def torch_version() -> str | None:
    """PyTorch's version; None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.__version__


def environment(**versions: str | None) -> dict[str, Any]:
    """The versions and the machine that figures were measured with."""
    cores = os.cpu_count()
    threads = int(os.environ.get(THREADS_VARIABLE) or cores or 1)
    return {
        "versions": {"pgps": __version__, "jax": jax.__version__, **versions},
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": cores, "threads": threads},
    }


def write(out: Path, record: dict[str, Any]) -> None:
    """Write `result.json` into the folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
