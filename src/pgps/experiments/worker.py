"""One of several processes that share an experiment's cells: `python -m pgps.experiments.worker ...`.

A worker takes every n-th of the cells that are missing, on one core: two programs on one core each finish before one
program on two cores has run twice, since most of a training step does not spread over cores.
"""

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from pgps.experiments import EXPERIMENTS
from pgps.experiments.runner import missing_cells, run_cell
from pgps.result import PGPSWarning


def start_workers(name: str, preset: str, seeds: Sequence[int], folder: Path, jobs: int) -> None:
    """Run all cells that are missing in `jobs` processes, and wait for them."""
    words = [name, preset, ",".join(map(str, seeds)), str(folder), str(jobs)]
    # The number of cores that XLA believes it has.
    environment = {**os.environ, "NPROC": "1"}
    workers = [
        subprocess.Popen([sys.executable, "-m", "pgps.experiments.worker", *words, str(number)], env=environment)
        for number in range(jobs)
    ]
    try:
        codes = [worker.wait() for worker in workers]
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
        raise
    if any(codes):
        raise RuntimeError(f"a worker ended with exit code {next(filter(None, codes))}; see what it printed")


def main(argv: Sequence[str]) -> None:
    """Run this worker's share of the cells, one after the other."""
    name, preset, seeds, folder, jobs, number = argv
    path = Path(folder)
    warnings.simplefilter("ignore", PGPSWarning)
    for cell in missing_cells(EXPERIMENTS[name], preset, path)[int(number) :: int(jobs)]:
        print(f"{name} {cell.name}", file=sys.stderr, flush=True)
        run_cell(path, cell, [int(seed) for seed in seeds.split(",")], progress=False)


if __name__ == "__main__":
    main(sys.argv[1:])
