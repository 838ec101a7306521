"""What an experiment is made of: cells that are computed, and findings that are drawn from them.

A cell is one setting; all its seeds run in one compiled program, and it is the unit in which an interrupted experiment
is resumed. Findings set what was measured beside what was published.
"""

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jaxtyping import Array

from pgps.initial import AbstractLaw
from pgps.methods import AbstractMethod
from pgps.reporting import Table
from pgps.result import Result, Status
from pgps.run import Observe
from pgps.sample import sample_many
from pgps.settings import describe
from pgps.targets import AbstractTarget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["reproduced", "partly", "not reproduced"]
Problem = Callable[[int], tuple[AbstractTarget, AbstractLaw]]
"""The target and the initial law of a seed."""


@dataclass(frozen=True)
class Record:
    """What a cell measured.

    Attributes:
        rows: One dict of plain values per seed, or a single one where there is nothing random.
        arrays: What the picture needs beyond that.
    """

    rows: list[dict[str, Any]]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def values(self, name: str) -> np.ndarray:
        """One measurement over the seeds."""
        return np.array([row[name] for row in self.rows], float)

    def text(self, name: str, digits: int = 3) -> str:
        """Mean and standard error over the seeds, for people."""
        values = self.values(name)
        if len(values) == 1:
            return f"{values[0]:.{digits}f}"
        return f"{np.mean(values):.{digits}f} ± {standard_error(values):.{digits}f}"

    def count(self, name: str) -> str:
        """The mean of a count over the seeds, for people."""
        return f"{np.mean(self.values(name)):,.0f}"

    @property
    def costs(self) -> tuple[str, str, str]:
        """Iterations, evaluations and training steps, for a table."""
        return self.count("iterations"), self.count("evaluations"), self.count("training_steps")


Records = Mapping[str, Record]
"""An experiment's records, by cell."""


@dataclass(frozen=True)
class Cell:
    """One setting of an experiment.

    Attributes:
        name: Its name, which is also that of its file.
        settings: All that decides what is computed, as plain data; an experiment is resumed only if they agree.
        run: Computes it for some seeds; the second argument says whether to show progress.
    """

    name: str
    settings: dict[str, Any]
    run: Callable[[Sequence[int], bool | None], Record]


@dataclass(frozen=True)
class Claim:
    """A published claim, what was measured of it, and whether that agrees."""

    published: str
    measured: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Findings:
    """What an experiment shows.

    Attributes:
        claims: The published claims, one by one.
        tables: The measurements.
        figure: The picture.
        caption: What the picture shows.
        notes: Where the settings depart from the published ones, and what else a reader should know.
    """

    claims: Sequence[Claim]
    tables: Sequence[Table]
    figure: "Figure"
    caption: str
    notes: Sequence[str] = ()

    @property
    def verdict(self) -> Verdict | Literal["open"]:
        """Reproduced if every claim is, not reproduced if none is at all, else partly; open if there is none."""
        verdicts: list[Verdict] = [claim.verdict for claim in self.claims]
        if not verdicts:
            return "open"
        return verdicts[0] if len(set(verdicts)) == 1 else "partly"


class AbstractExperiment(abc.ABC):
    """A figure of the paper, or another published statement, that one command repeats."""

    title: str
    allows_gaps: bool = False
    """Whether `findings` makes do with some of the cells, as a table does."""

    @abc.abstractmethod
    def seeds(self, preset: str) -> tuple[int, ...]:
        """The seeds of a preset, unless others are asked for."""

    @abc.abstractmethod
    def cells(self, preset: str) -> list[Cell]:
        """The settings of a preset."""

    @abc.abstractmethod
    def findings(self, preset: str, records: Records) -> Findings:
        """What the records show."""


def sampling_cell(
    name: str,
    method: AbstractMethod,
    problem: Problem,
    num_particles: int,
    measure: Callable[[Result, AbstractTarget], dict[str, float]],
    observe: Observe | None = None,
) -> Cell:
    """A cell that samples a problem once per seed.

    Args:
        name: The cell's name.
        method: The sampler.
        problem: The target and the initial law of a seed.
        num_particles: How many particles.
        measure: Takes a result and its target, and returns measurements.
        observe: Measures something at every step. Its columns, one row per seed, become arrays of the record.
    """

    def run(seeds: Sequence[int], progress: bool | None) -> Record:
        targets, laws = zip(*[problem(seed) for seed in seeds], strict=True)
        keys = [run_key(seed) for seed in seeds]
        start = time.perf_counter()
        results = sample_many(
            list(targets),
            laws[0],
            keys=keys,
            num_particles=num_particles,
            method=method,
            progress=progress,
            observe=observe,
        )
        if any(result.status == Status.INTERRUPTED for result in results):
            raise KeyboardInterrupt
        seconds = (time.perf_counter() - start) / len(seeds)
        rows = [
            {"seed": seed, **measure(result, target), **cost(result), "seconds": seconds}
            for seed, result, target in zip(seeds, results, targets, strict=True)
        ]
        arrays = {"particles": np.asarray(results[0].particles)}
        if observe is not None:
            names = jax.eval_shape(observe, results[0].particles)
            arrays |= {name: np.stack([result.trace[name] for result in results]) for name in names}
        return Record(rows, arrays)

    target, initial = problem(0)
    settings = {
        "method": describe(method),
        "target": describe(target),
        "initial": describe(initial),
        "num_particles": num_particles,
    }
    return Cell(name, settings, run)


def run_key(seed: int) -> Array:
    """The key of a seed's run; a problem that is itself random takes other keys from the seed."""
    return jax.random.fold_in(jax.random.key(seed), 1)


def cost(result: Result) -> dict[str, Any]:
    """What a run cost: iterations as the paper counts them, and evaluations, which is what users pay for."""
    trace = result.trace
    flow_steps, adjustment_steps = len(trace["t"]), int(np.sum(trace.get("adjustment_steps", 0)))
    return {
        "iterations": flow_steps + adjustment_steps,
        "training_steps": int(np.sum(trace.get("training_steps", 0))),
        "evaluations": int(result.num_evaluations.total) // result.num_particles,
        "status": result.status.name,
        "warnings": list(result.warnings),
    }


def standard_error(values: np.ndarray) -> float:
    """The standard error of a mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
