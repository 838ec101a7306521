"""What benchmarks share: a clock for compiled steps, a note on the machine, and the file that they write."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from pgps._version import __version__

Steps = Callable[[int], float]
"""Takes so many steps, each of which depends on the last, and returns a number that depends on them."""


def milliseconds(
    steps: Steps, repeats: int, least: float, pick: Callable[[list[float]], float] = statistics.median
) -> float:
    """Milliseconds per step, picked from several runs, each long enough for the clock (`least` seconds)."""
    steps(2)
    count, seconds = 2, 0.0
    while seconds < least:
        count *= 2
        seconds = _seconds(steps, count)
    return 1e3 * pick([_seconds(steps, count) / count for _ in range(repeats)])


def _seconds(steps: Steps, count: int) -> float:
    start = time.perf_counter()
    steps(count)
    return time.perf_counter() - start


def environment(**versions: str | None) -> dict[str, Any]:
    """The versions and the machine that figures were measured with."""
    return {
        "versions": {"pgps": __version__, "jax": jax.__version__, **versions},
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
    }


def write(out: Path, record: dict[str, Any]) -> None:
    """Write `result.json` into the folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
