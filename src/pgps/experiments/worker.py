"""One of several processes that share an experiment's cells: `python -m pgps.experiments.worker ...`.

Each works on one core: two programs on a core each finish before one program on two cores has run twice, since much of
a training step does not spread over cores.
"""

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from pgps.experiments import EXPERIMENTS
from pgps.experiments.runner import missing_cells, run_cell
from pgps.programs import THREADS_VARIABLE
from pgps.result import PGPSWarning


def start_workers(name: str, preset: str, seeds: Sequence[int], folder: Path, only: Sequence[str], jobs: int) -> None:
    """Run all cells that are missing in `jobs` processes, and wait for them."""
    environment = {**os.environ, THREADS_VARIABLE: "1"}
    with tempfile.TemporaryDirectory() as claims:
        words = [name, preset, ",".join(map(str, seeds)), str(folder), ",".join(only), claims]
        command = [sys.executable, "-m", "pgps.experiments.worker", *words]
        workers = [subprocess.Popen(command, env=environment) for _ in range(jobs)]
        try:
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.terminate()
    if any(codes):
        raise RuntimeError(f"a worker ended with exit code {next(filter(None, codes))}; see what it printed")


def main(argv: Sequence[str]) -> None:
    """Run cells that no other worker has claimed, until none is left."""
    name, preset, seeds, folder, only, claims = argv
    warnings.simplefilter("ignore", PGPSWarning)
    # The last ones take longest, so that they come first.
    for cell in reversed(missing_cells(EXPERIMENTS[name], preset, Path(folder), only.split(","))):
        if _claimed(Path(claims) / cell.name):
            print(f"{name} {cell.name}", file=sys.stderr, flush=True)
            run_cell(Path(folder), cell, [int(seed) for seed in seeds.split(",")], progress=False)


def _claimed(path: Path) -> bool:
    """Whether this worker is the first to ask for a cell."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
