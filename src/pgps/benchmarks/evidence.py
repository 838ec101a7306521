"""`pgps bench evidence`: the log evidence of known targets by this library and by BlackJAX, its error bar, its cost.

`pgps bench gauntlet` is the same with the default sampler on targets of all shapes.

A cell is one sampler on one target, for all seeds. It is kept in `cells/` when it is complete, so that the same command
goes on after an interruption. A seed has the same key, and where targets are random the same target, for all samplers.
"""

import dataclasses
import difflib
import importlib.metadata
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from pgps import adjustments, fields, methods, recipes, steppers, storage
from pgps.benchmarks import evidence_page, gauntlet_cases, peers
from pgps.benchmarks.evidence_cases import CASES, AnyTarget, Case, Outcome, true_log_evidence
from pgps.benchmarks.timing import environment, write
from pgps.density import Evaluations, Problem
from pgps.experiments.base import run_key
from pgps.experiments.runner import check_seeds
from pgps.result import PGPSWarning, Status
from pgps.sample import sample
from pgps.scouting import Scouting, scouted
from pgps.settings import describe


class PathGuided(eqx.Module):
    """A sampler of this library, started from the case's law or from one that scouts have made of it."""

    method: methods.AbstractMethod
    scouts: bool = False

    def run(self, case: Case, keys: Sequence[Array], seeds: Sequence[int], num_particles: int) -> list[Outcome]:
        """Sample a case once per seed, in one compiled program, after a run that compiles it."""
        warm_up = (jax.random.fold_in(keys[0], 0), seeds[0])
        _, *outcomes = [
            self._once(key, *case.build(seed), num_particles) for key, seed in (warm_up, *zip(keys, seeds, strict=True))
        ]
        return outcomes

    def _once(self, key: Array, target: AnyTarget, initial: Any, num_particles: int) -> Outcome:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PGPSWarning)
            start, scouting = time.perf_counter(), Evaluations()
            if self.scouts:
                initial = scouted(target, initial, key=jax.random.fold_in(key, 1))
                scouting = initial.evaluations
            result = sample(target, initial, key=key, num_particles=num_particles, method=self.method, progress=False)
            jax.block_until_ready(result.particles)
            seconds = time.perf_counter() - start
        if result.status == Status.INTERRUPTED:
            raise KeyboardInterrupt
        calls = result.num_evaluations + scouting
        return Outcome(
            result.particles,
            result.log_weights,
            result.status == Status.COMPLETED,
            result.log_evidence,
            result.log_evidence_error,
            int(calls.gradients),
            int(calls.values),
            seconds,
            result.warnings,
        )


Sampler = PathGuided | peers.BlackjaxSMC | peers.Nuts


class Preset(NamedTuple):
    """How much is measured.

    Attributes:
        seeds: The seeds.
        targets: The targets.
        samplers: The samplers.
        num_particles: How many particles; None takes each target's own number.
    """

    seeds: tuple[int, ...]
    targets: tuple[str, ...]
    samplers: Mapping[str, Sampler]
    num_particles: int | None


LADDERS = (0.5, 0.7, 0.95, 0.99)
"""Further shares of effective particles, for `zero` and `blackjax`: what a user might set to make them better."""
BLACKJAX_MOVES = 10
"""BlackJAX's own default; with as many moves `blackjax` is better, and dearer, than with those that it has here."""


def _samplers(method: methods.AbstractMethod, smc: peers.BlackjaxSMC, nuts: peers.Nuts) -> dict[str, Sampler]:
    many = dataclasses.replace(smc, num_mcmc_steps=BLACKJAX_MOVES)
    ladders = {f"zero-{share:g}": PathGuided(methods.TemperedSMC(steppers.ConditionalESS(share))) for share in LADDERS}
    ladders |= {f"blackjax-{share:g}": dataclasses.replace(smc, target_ess=share) for share in LADDERS}
    ladders |= {
        f"blackjax-{share:g}x{BLACKJAX_MOVES}": dataclasses.replace(many, target_ess=share) for share in (0.9, *LADDERS)
    }
    usual = {
        "exact": PathGuided(method),
        "scouted": PathGuided(method, scouts=True),
        "zero": PathGuided(methods.TemperedSMC()),
        "blackjax": smc,
        "nuts": nuts,
    }
    return usual | ladders


SAMPLERS = _samplers(recipes.exact(), peers.BlackjaxSMC(), peers.Nuts())
# One family of fields and few draws: what takes long in a test is compilation.
_SMALL = _samplers(
    recipes.exact(field=fields.Affine(), moves=adjustments.MALA()),
    peers.BlackjaxSMC(pilot_runs=2),
    peers.Nuts(num_warmup=50, num_draws=50),
)
PRESETS = {
    "full": Preset(tuple(range(10)), tuple(CASES), SAMPLERS, None),
    "smoke": Preset((0, 1), ("mode-discovery", "nine-gaussians", "funnel"), _SMALL, 60),
}


class Suite(NamedTuple):
    """Cases that are measured together, and how."""

    cases: Mapping[str, Case]
    samplers: tuple[str, ...]
    presets: Mapping[str, Preset]


EVIDENCE = Suite(CASES, ("exact", "scouted", "zero", "blackjax", "nuts"), PRESETS)
GAUNTLET = Suite(
    gauntlet_cases.CASES,
    ("exact",),
    {
        "full": Preset(tuple(range(8)), tuple(gauntlet_cases.CASES), SAMPLERS, None),
        "smoke": Preset((0, 1), ("ring-2d", "box-4d"), _SMALL, 60),
    },
)


class Cell(NamedTuple):
    """One sampler on one target; `settings` decide what is computed, and a cell is kept only if they agree."""

    target: str
    sampler: str
    case: Case
    settings: dict[str, Any]
    run: Callable[[], list[dict[str, Any]]]

    @property
    def file(self) -> Path:
        """Where its record is kept, within the folder."""
        return Path("cells") / f"{self.target}--{self.sampler}.json"


def plan(
    preset: str,
    targets: Sequence[str] | None = None,
    samplers: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    suite: Suite = EVIDENCE,
) -> list[Cell]:
    """The cells to measure; NUTS, which gives no evidence, where something else is checked; scouts in few dimensions.

    Args:
        preset: The name of one of the suite's presets.
        targets: Names of its cases; None takes the preset's.
        samplers: Names in `SAMPLERS`; None takes the suite's.
        seeds: The seeds; None takes the preset's.
        suite: The cases to choose from.
    """
    chosen = suite.presets[preset]
    targets = _known("targets", chosen.targets if targets is None else targets, suite.cases)
    samplers = _known("samplers", suite.samplers if samplers is None else samplers, SAMPLERS)
    seeds = chosen.seeds if seeds is None else tuple(seeds)
    check_seeds(seeds)
    if any(isinstance(SAMPLERS[name], peers.BlackjaxSMC | peers.Nuts) for name in samplers):
        peers.check_installed()
    return [
        _cell(target, suite.cases[target], sampler, chosen, seeds)
        for target in targets
        for sampler in samplers
        if _applies(sampler, suite.cases[target])
    ]


def _applies(sampler: str, case: Case) -> bool:
    if sampler == "scouted":
        return case.has_maxima and Problem.of(*case.build(0)).structure.dim <= Scouting().max_dim
    return sampler != "nuts" or bool(case.checks)


def check_folder(out: Path, cells: Sequence[Cell]) -> None:
    """Raise unless the folder is new or empty, or holds cells of the same settings, or of others than these."""
    if not (out / "cells").is_dir():
        storage.check_free(out)
    for cell in cells:
        _read(out, cell)


def run(out: Path, quiet: bool, cells: Sequence[Cell], command: str) -> dict[str, Any]:
    """Measure the cells that the folder does not hold yet, and write `result.json` and `page.md` from all of them.

    Args:
        out: A new or empty folder, or one to go on in.
        quiet: Whether to say nothing about the progress.
        cells: What to measure.
        command: The command that was run, to be shown on the page.
    """
    check_folder(out, cells)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    summary: dict[str, dict[str, Any]] = {}
    rows = {}
    for number, cell in enumerate(cells, 1):
        known = _read(out, cell)
        if not quiet:
            done = " (done before)" if known else ""
            print(f"{number}/{len(cells)} {cell.target}, {cell.sampler}{done}", flush=True)
        found = known or cell.run()
        if known is None:
            _write(out / cell.file, json.dumps({"settings": cell.settings, "rows": found}, indent=2) + "\n")
            # Programs are not used again, and peers do not make room for their own.
            jax.clear_caches()
        rows[cell.file.stem] = found
        summary.setdefault(cell.target, {})[cell.sampler] = evidence_page.summarise(found)
    record = {
        "command": command,
        "summary": summary,
        "relative_cost": {target: evidence_page.relative_cost(row) for target, row in summary.items()},
        "truth": {cell.target: {check.name: check.truth for check in cell.case.checks} for cell in cells},
        "cells": {cell.file.stem: {"settings": cell.settings, "rows": rows[cell.file.stem]} for cell in cells},
        **environment(blackjax=_blackjax_version()),
    }
    write(out, record)
    _write(out / "page.md", evidence_page.markdown(record))
    return record


def _cell(target: str, case: Case, sampler: str, preset: Preset, seeds: Sequence[int]) -> Cell:
    method = preset.samplers[sampler]
    seeds = seeds[: case.most_seeds]
    num_particles = preset.num_particles or case.num_particles

    def run() -> list[dict[str, Any]]:
        outcomes = method.run(case, [run_key(seed) for seed in seeds], seeds, num_particles)
        return [_row(case, seed, outcome) for seed, outcome in zip(seeds, outcomes, strict=True)]

    density, initial = case.build(seeds[0])
    settings = {
        "sampler": describe(method),
        "target": describe(density),
        "initial": describe(initial),
        "num_particles": num_particles,
        "seeds": list(seeds),
        "versions": environment()["versions"],
    }
    # As it comes back from a file: tuples are lists there.
    return Cell(target, sampler, case, json.loads(json.dumps(settings)), run)


def _row(case: Case, seed: int, outcome: Outcome) -> dict[str, Any]:
    target, _ = case.build(seed)
    particles, log_weights = (np.asarray(array, float) for array in outcome[:2])
    checks = {check.name: check.measure(target, particles, log_weights) for check in case.checks}
    return {
        "seed": seed,
        "truth": true_log_evidence(target),
        "checks": checks if outcome.complete else {},
        **{name: getattr(outcome, name) for name in Outcome._fields[2:]},
        "warnings": list(outcome.warnings),
    }


def _known(argument: str, names: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The names, each once, or an error with the nearest name that exists."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise ValueError(f"{argument} must be among {', '.join(known)}, got {name!r}; did you mean {near[0]}?")
    if not names:
        raise ValueError(f"{argument} must hold at least one name, got none; choose from {', '.join(known)}")
    return list(dict.fromkeys(names))


def _read(out: Path, cell: Cell) -> list[dict[str, Any]] | None:
    path = out / cell.file
    if not path.is_file():
        return None

    def refusal(reason: str) -> ValueError:
        return ValueError(f"out {out} holds a damaged {cell.file} ({reason}); remove it, or choose another folder")

    with storage.refusing(refusal):
        found = json.loads(path.read_text(encoding="utf-8"))
        settings, rows = dict(found["settings"]), [dict(row) for row in found["rows"]]
    differing = [key for key, value in cell.settings.items() if settings.get(key) != value]
    if differing:
        raise FileExistsError(
            f"out must be new, or hold the same measurements, but {path} differs in {', '.join(differing)}; choose "
            "another folder"
        )
    return rows


def _write(path: Path, text: str) -> None:
    """Write a file whole, or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def _blackjax_version() -> str | None:
    return importlib.metadata.version("blackjax") if importlib.util.find_spec("blackjax") else None
