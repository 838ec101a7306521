"""Several runs side by side: evidence, effective sample size, cost, verdicts, and marginals over each other."""

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from pgps.reporting._extra import check_installed
from pgps.reporting.charts import LINES, draw_overlay
from pgps.reporting.coordinates import Coordinates
from pgps.reporting.report import Charts, Report, Table, Verdict, render, replace_page
from pgps.reporting.run import Run
from pgps.reporting.verdict import facts, judge, method_name, title
from pgps.result import Result, Status

KIND = "comparison"

MOST_RUNS = len(LINES)

# Standard errors between two log evidences beyond which they do not agree.
_FARTHEST_APART = 3.0

_NONE = "-"


def compare_runs(folders: Sequence[Path], out: Path | None = None) -> tuple[Path, Verdict]:
    """Write a page that sets runs side by side; returns its path and the verdict.

    Args:
        folders: The runs' folders; each is compared with the first.
        out: Where to write the page; `comparison.html` in the first folder if None.
    """
    check_installed()
    if not 2 <= len(folders) <= MOST_RUNS:
        raise ValueError(f"a comparison takes 2 to {MOST_RUNS} runs, got {len(folders)}; name fewer, or more")
    runs = {name: Run.read(folder) for name, folder in zip(_names(folders), folders, strict=True)}
    asked = shlex.join(["pgps", "report", str(folders[0]), "--compare", *map(str, folders[1:])])
    return replace_page(out or folders[0] / "comparison.html", _page(runs, asked), KIND), _judge(runs)


def _names(folders: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's own, or as much of the path as tells it from the others, or a number."""
    resolved = [folder.resolve() for folder in folders]
    short = [folder.name for folder in resolved]
    if len(set(short)) == len(short):
        return short
    full = [str(folder) for folder in folders]
    return full if len(set(full)) == len(full) else [f"{i}: {name}" for i, name in enumerate(full, start=1)]


def _page(runs: dict[str, Run], asked: str) -> str:
    first = next(iter(runs.values()))
    results = [run.result for run in runs.values()]
    doubts = [
        f"{name}: {reason}"
        for name, run in runs.items()
        if judge(run.result).level != "good"
        for reason in [judge(run.result).text, *run.result.warnings]
    ]
    targets = {title(result).partition(", sampled by")[0] for result in results}
    if len(targets) > 1:
        doubts.append(
            f"The targets have different names ({', '.join(sorted(targets))}): compare evidences only if it is one."
        )
    report = Report(
        title=f"{len(runs)} runs side by side: {', '.join(runs)}",
        asked=asked,
        verdict=_judge(runs),
        facts={},
        warnings=(),
        tables=(),
        images=(),
        text="",
        versions=first.result.provenance["versions"],
        settings={name: run.result.provenance for name, run in runs.items()},
        reasons=doubts,
        sections=[_table(runs), _marginals(runs)],
        kind=KIND,
    )
    return render(report)


def _judge(runs: dict[str, Run]) -> Verdict:
    results = [run.result for run in runs.values()]
    if any(result.status != Status.COMPLETED for result in results):
        return Verdict("bad", "Not comparable.", "A run failed: its particles are no samples of the target.")
    apart = [abs(difference) / error for difference, error in _differences(results) if error > 0]
    if len(apart) < len(results) - 1:
        return Verdict("care", "Doubt.", "Not every run has a log evidence to compare by.")
    if max(apart) > _FARTHEST_APART:
        text = f"The log evidences are up to {max(apart):.1f} standard errors apart."
        return Verdict("bad", "The runs do not agree.", text)
    text = f"The log evidences are within {max(apart):.1f} standard errors of the first."
    if any(judge(result).level != "good" for result in results):
        return Verdict("care", "The runs agree, but not all can be trusted.", text)
    return Verdict("good", "The runs agree.", text)


def _differences(results: Sequence[Result]) -> list[tuple[float, float]]:
    """Each run's log evidence less the first's, and the standard error; nothing where there is no evidence."""
    first, *others = results
    return [
        (
            other.log_evidence - first.log_evidence,
            math.hypot(other.log_evidence_error or 0.0, first.log_evidence_error or 0.0),
        )
        for other in others
        if other.log_evidence is not None and first.log_evidence is not None
    ]


def _difference(result: Result, first: Result) -> str:
    if result is first or not (found := _differences([first, result])):
        return _NONE
    return f"{found[0][0]:+.4f} ± {found[0][1]:.4f}"


def _table(runs: dict[str, Run]) -> Table:
    results = [run.result for run in runs.values()]

    def row(name: str, show: Callable[[Result], str]) -> list[str]:
        return [name, *[show(result) for result in results]]

    def fact(name: str) -> list[str]:
        return row(name, lambda result: facts(result).get(name, _NONE))

    def per_effective(amount: float, result: Result) -> str:
        return _NONE if not result.ess else f"{amount / result.ess:,.3g}"

    def calls(result: Result) -> int:
        return int(result.num_evaluations.total)

    rows = [
        row("Verdict", lambda result: judge(result).headline.rstrip(".")),
        row("Method", method_name),
        fact("Log evidence"),
        row("Difference from the first", lambda result: _difference(result, results[0])),
        fact("Effective sample size"),
        row("Modes", lambda result: _NONE if result.log_evidence is None else f"{len(result.modes().masses)}"),
        row("Evaluations", lambda result: f"{calls(result):,}"),
        row("Evaluations per effective sample", lambda result: per_effective(calls(result), result)),
        fact("Seconds"),
        *[fact(name) for name in ("Particles", "Dimensions", "Steps", "Status")],
        row("Made", lambda result: str(result.provenance.get("created", _NONE))[:10]),
    ]
    caption = "Seconds include compilation; evaluations are calls of the log-density, with or without gradient."
    return Table(caption, ["", *runs], rows, "Side by side")


def _marginals(runs: dict[str, Run]) -> Charts:
    coordinates = [Coordinates.of(run.result) for run in runs.values()]
    common = set(coordinates[0].names).intersection(*[one.names for one in coordinates[1:]])
    shown = [coordinates[0].names[i] for i in coordinates[0].most_telling()]
    names = [name for name in shown if name in common] or sorted(common)[: len(shown)]
    if not names:
        return Charts("Marginals", "The runs have no coordinate in common, by name.", ())
    note = "Weighted marginals of the same coordinate, over each other."
    if len(names) < len(common):
        note += f" Of {len(common):,} common coordinates these {len(names)}: those that tell most of the first run."
    drawings = [draw_overlay(name, coordinates, f"marginal-{i}") for i, name in enumerate(names)]
    return Charts("Marginals", note, drawings, legend=tuple(runs))
