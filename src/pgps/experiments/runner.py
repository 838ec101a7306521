"""Runs an experiment into a folder, cell by cell, so that an interrupted one goes on where it stopped.

The folder holds `experiment.json` (what was asked), `cells/` (one record per setting, written when it is complete), and
in the end `result.json`, `figure.png`, `figure.svg`, `page.md` and `report.html`.
"""

import collections
import datetime
import fnmatch
import io
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pgps import reporting, storage
from pgps._version import __version__
from pgps.experiments.base import AbstractExperiment, Cell, Findings, Record
from pgps.experiments.page import html_page, markdown_page

PRESETS = ("smoke", "paper")


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise unless the seeds are different, and there is at least one."""
    repeated = sorted(seed for seed, count in collections.Counter(seeds).items() if count > 1)
    if repeated:
        listed = ", ".join(map(str, repeated))
        raise ValueError(f"seeds must differ, got {listed} more than once; a repeated seed is no further evidence")
    if not seeds:
        raise ValueError("seeds must hold at least one number, got none; as in 0,1,2")


def check_folder(name: str, experiment: AbstractExperiment, preset: str, seeds: Sequence[int], folder: Path) -> None:
    """Raise unless the folder is new or empty, or holds the same experiment."""
    path = folder / "experiment.json"
    if not path.is_file():
        storage.check_free(folder)
        return
    asked = _asked(name, experiment, preset, seeds)
    with storage.refusing(_damaged(folder, path.name)):
        found = json.loads(path.read_text(encoding="utf-8"))
    differing = [key for key in asked if not isinstance(found, dict) or found.get(key) != asked[key]]
    if differing:
        shown = {key: found.get(key) if isinstance(found, dict) else None for key in ("experiment", "preset", "seeds")}
        raise FileExistsError(
            f"out must be new, or hold the same experiment, but {folder} holds another ({shown}; it differs in "
            f"{', '.join(differing)}); choose another folder"
        )
    for cell in experiment.cells(preset):
        _read_cell(folder, cell)


def reproduce(
    name: str,
    experiment: AbstractExperiment,
    preset: str,
    seeds: Sequence[int],
    folder: Path,
    *,
    command: str,
    only: Sequence[str] = ("*",),
    workers: Callable[[], None] | None = None,
    progress: bool | None = None,
    announce: Callable[[str], None] | None = None,
) -> tuple[Findings, Path]:
    """Run what is missing, and write the findings; returns them and the report's path.

    Args:
        name: The experiment's name.
        experiment: The experiment.
        preset: `smoke` or `paper`.
        seeds: The seeds.
        folder: A new folder, or one in which the same experiment was begun.
        command: The command that was run, to be shown in the report.
        only: Patterns of the cells that are wanted, such as `*-pgps`; those complete before are shown, too.
        workers: Runs the missing cells in other processes, before this one looks for them.
        progress: Whether to show progress bars; None shows them on a terminal.
        announce: Called with a line before each cell.
    """
    check_seeds(seeds)
    check_folder(name, experiment, preset, seeds, folder)
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    if not (folder / "experiment.json").is_file():
        _write(folder / "experiment.json", _json(_asked(name, experiment, preset, seeds)))

    if workers is not None and missing_cells(experiment, preset, folder, only):
        workers()
    unwanted = {cell.name for cell in missing_cells(experiment, preset, folder)}
    unwanted -= {cell.name for cell in missing_cells(experiment, preset, folder, only)}
    cells = [cell for cell in experiment.cells(preset) if cell.name not in unwanted]
    records, seconds = {}, {}
    for number, cell in enumerate(cells, 1):
        known = _read_cell(folder, cell)
        if announce is not None:
            announce(f"{name} {number}/{len(cells)} {cell.name}" + (" (done before)" if known else ""))
        records[cell.name], seconds[cell.name] = known or run_cell(folder, cell, seeds, progress)

    findings = experiment.findings(preset, records)
    record = {
        "command": command,
        **_asked(name, experiment, preset, seeds),
        "verdict": findings.verdict,
        "claims": [asdict(claim) for claim in findings.claims],
        "notes": list(findings.notes),
        "cells": {cell.name: {"seconds": seconds[cell.name], "rows": records[cell.name].rows} for cell in cells},
        "seconds": sum(seconds.values()),
        "machine": {"cores": os.cpu_count(), "device": jax.devices()[0].device_kind, "system": platform.platform()},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return findings, _write_findings(folder, experiment.title, findings, record)


def _write_findings(folder: Path, title: str, findings: Findings, record: dict[str, Any]) -> Path:
    """Write the picture, the pages and the record; returns the report's path."""
    picture = {kind: reporting.encode(findings.figure, kind) for kind in ("png", "svg")}
    for kind, data in picture.items():
        _write(folder / f"figure.{kind}", data)
    _write(folder / "page.md", markdown_page(title, findings, record).encode())
    _write(folder / "report.html", html_page(title, findings, record, picture["png"]).encode())
    _write(folder / "result.json", _json(record))
    return folder / "report.html"


def _asked(name: str, experiment: AbstractExperiment, preset: str, seeds: Sequence[int]) -> dict[str, Any]:
    settings = {cell.name: cell.settings for cell in experiment.cells(preset)}
    asked = {
        "experiment": name,
        "preset": preset,
        "seeds": list(seeds),
        "settings": settings,
        "versions": {"pgps": __version__, "jax": jax.__version__, "python": platform.python_version()},
    }
    # As it comes back from a file: tuples are lists there.
    return json.loads(json.dumps(asked))


def check_only(experiment: AbstractExperiment, preset: str, only: Sequence[str]) -> None:
    """Raise unless each pattern names a cell, of an experiment that makes do with some."""
    names = [cell.name for cell in experiment.cells(preset)]
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"only must name cells, got {pattern!r}; they are {', '.join(names)}")
    if not experiment.allows_gaps and not all(any(fnmatch.fnmatch(name, p) for p in only) for name in names):
        raise ValueError(f"only must name every cell here, got {', '.join(only)}; a figure needs them all")


def missing_cells(
    experiment: AbstractExperiment, preset: str, folder: Path, only: Sequence[str] = ("*",)
) -> list[Cell]:
    """The cells, of those that some pattern names, that the folder does not hold yet."""
    return [
        cell
        for cell in experiment.cells(preset)
        if any(fnmatch.fnmatch(cell.name, pattern) for pattern in only)
        and not _cell_path(folder, cell, "json").is_file()
    ]


def run_cell(folder: Path, cell: Cell, seeds: Sequence[int], progress: bool | None) -> tuple[Record, float]:
    """Run a cell and write its record; returns both the record and the seconds that it took."""
    start = time.perf_counter()
    record = cell.run(seeds, progress)
    seconds = time.perf_counter() - start
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **record.arrays)
    _write(_cell_path(folder, cell, "npz"), archive.getvalue())
    # Written last: a cell is complete when this file is there.
    _write(_cell_path(folder, cell, "json"), _json({"seconds": seconds, "rows": record.rows}))
    return record, seconds


def _read_cell(folder: Path, cell: Cell) -> tuple[Record, float] | None:
    path = _cell_path(folder, cell, "json")
    if not path.is_file():
        return None
    with storage.refusing(_damaged(folder, f"cells/{cell.name}")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, seconds = found["rows"], float(found["seconds"])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("its rows are of another kind than pgps reproduce writes")
        arrays = _cell_path(folder, cell, "npz")
        if not arrays.is_file():
            raise ValueError(f"{arrays.name} is missing")
        with arrays.open("rb") as file:
            return Record(rows, storage.read_archive(file)), seconds


def _damaged(folder: Path, name: str) -> Callable[[str], ValueError]:
    return lambda reason: ValueError(
        f"out {folder} holds a damaged {name} ({reason}); remove it, or choose another folder"
    )


def _cell_path(folder: Path, cell: Cell, kind: str) -> Path:
    return folder / "cells" / f"{cell.name}.{kind}"


def _json(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=2) + "\n").encode()


def _write(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    os.replace(draft, path)
