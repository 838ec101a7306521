"""The report of one run of `pgps.sample`, whatever was sampled: made with the run, and again from its folder."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from pgps.metrics.clusters import Modes
from pgps.reporting._extra import check_installed
from pgps.reporting.charts import Drawing, draw_traces, to_svg
from pgps.reporting.coordinates import Coordinates
from pgps.reporting.figures import draw_pairs, encode
from pgps.reporting.recording import Recording
from pgps.reporting.report import Animation, Charts, Report, Table, Verdict, render, replace_page
from pgps.reporting.verdict import facts, judge, reasons, title
from pgps.result import Result, load

KIND = "run"

_MOST_ROWS = 200
_MOST_MODES = 40
_MOST_PARTICLES = 100_000


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as a report sees it: the result, the command behind it, if known, and the recording, if there is one."""

    result: Result
    recording: Recording | None = None

    @property
    def asked(self) -> str:
        """The command that was run."""
        return str(self.result.provenance.get("command", "not recorded: this result was saved from Python"))

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run's folder.

        Raises:
            FileNotFoundError: There is no run in the folder.
            ValueError: What is there is damaged.
        """
        try:
            result = load(folder)
            _check(result)
            return cls(result, Recording.load(folder, result.provenance["dim"]))
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"{folder} is no run's folder: result.json or particles.npz is missing; name one that pgps sample or "
                "Result.save wrote"
            ) from None
        except Exception as error:  # a file that was tampered with fails in any way
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"{folder} holds a damaged run ({reason:.160}); restore it or run again") from error


def save_run(result: Result, folder: Path, asked: str, recording: Recording | None = None) -> Path:
    """Write the result, its picture and its report into a new or empty folder; returns the report's path.

    Args:
        result: The result.
        folder: The folder.
        asked: The command that was run, to be shown in the report.
        recording: Where particles were along t, from `Recorder`.
    """
    check_installed()
    result = dataclasses.replace(result, provenance=result.provenance | {"command": asked})
    coordinates = Coordinates.of(result)
    if recording is not None:
        recording = recording.select(coordinates.most_telling(recording.coordinates))
    # First of all the result: whatever befalls the pictures, it is not lost.
    result.save(folder)
    if recording is not None:
        recording.save(folder)
    view = _View.of(Run(result, recording), coordinates)
    path = replace_page(folder / "report.html", _render(view), KIND)
    # After the page: drawing a figure moves its parts a little, and a page made again should be the same.
    (folder / "marginals.png").write_bytes(encode(view.figure, "png"))
    return path


def rebuild_run(folder: Path, out: Path | None = None) -> tuple[Path, Verdict]:
    """Make the report again from what is in a run's folder; returns its path and the verdict.

    Args:
        folder: The folder.
        out: Where to write the page; `report.html` in the folder if None.
    """
    check_installed()
    run = Run.read(folder)
    page = _render(_View.of(run, Coordinates.of(run.result)))
    return replace_page(out or folder / "report.html", page, KIND), judge(run.result)


@dataclasses.dataclass(frozen=True)
class _View:
    """What several parts of a page need, computed once: the modes, which coordinates are shown, and the picture."""

    run: Run
    coordinates: Coordinates
    modes: Modes | None
    shown: list[int]
    figure: Any

    @classmethod
    def of(cls, run: Run, coordinates: Coordinates) -> "_View":
        """A run with its coordinates; modes only where the particles have weights to measure them by."""
        weighed = run.result.log_evidence is not None and run.result.num_particles <= _MOST_PARTICLES
        modes, shown = run.result.modes() if weighed else None, coordinates.most_telling()
        labels = None if modes is None or len(modes.masses) == 1 else modes.labels
        names = [coordinates.names[i] for i in shown]
        figure = draw_pairs(coordinates.columns[:, shown], coordinates.weights, names, labels)
        return cls(run, coordinates, modes, shown, figure)


def _render(view: _View) -> str:
    run, result = view.run, view.run.result
    sections = [_mode_table(view), _animation(view), _pairs(view), _coordinate_table(view.coordinates), _traces(result)]
    provenance = result.provenance
    report = Report(
        title=title(result),
        asked=run.asked,
        verdict=judge(result),
        facts=facts(result),
        warnings=(),
        tables=(),
        images=(),
        text=result.summary(),
        versions=provenance["versions"],
        settings=provenance,
        reasons=reasons(result),
        sections=[section for section in sections if section is not None],
        kind=KIND,
    )
    return render(report)


def _check(result: Result) -> None:
    """Raise unless the parts of a result fit together."""
    log_weights, provenance = np.asarray(result.log_weights), result.provenance
    columns = Coordinates.of(result).columns
    lengths = {len(np.asarray(values, float)) for values in result.trace.values()}
    if "t" not in result.trace or len(lengths) > 1:
        raise ValueError("the columns of the trace are not equally long")
    if log_weights.shape != (len(columns),) or not np.all(log_weights < np.inf) or log_weights.max() == -np.inf:
        raise ValueError("log_weights do not fit the particles")
    if columns.shape[1] != provenance["dim"] or not np.all(np.isfinite(columns)):
        raise ValueError("particles do not fit result.json, or are not finite")
    if not isinstance(provenance["versions"], dict) or not all(isinstance(text, str) for text in result.warnings):
        raise ValueError("result.json has an entry of another kind than Result.save writes")
    for show in (facts, title, reasons, Result.summary):
        show(result)


def _mode_table(view: _View) -> Table | None:
    modes, names = view.modes, [view.coordinates.names[i] for i in view.shown]
    if modes is None:
        return None
    num = len(modes.masses)
    caption = "One mode was found." if num == 1 else f"{num} modes were found; each has the mass of its particles."
    if num > _MOST_MODES:
        caption += f" The {_MOST_MODES} largest are shown."
    rows = [
        [f"{k}", f"{mass:.4f} ± {error:.4f}", *[f"{center[i]:.4g}" for i in view.shown]]
        for k, (mass, error, center) in enumerate(zip(*modes[:3], strict=True))
    ]
    return Table(caption, ["mode", "mass", *names], rows[:_MOST_MODES], "Modes")


def _animation(view: _View) -> Animation | None:
    recording, trace, modes, names = view.run.recording, view.run.result.trace, view.modes, view.coordinates.names
    if recording is None:
        return None
    steps, ess = len(trace["t"]), trace.get("ess")
    notes = []
    for t, step in zip(recording.t, recording.step, strict=True):
        effective = f", ESS {ess[step - 1]:.0f}" if ess is not None and 0 < step <= len(ess) else ""
        notes.append(f"t = {t:.3f}, step {step} of {steps}{effective}")
    centers = np.zeros((0, len(names))) if modes is None else modes.centers[:_MOST_MODES]
    frames = recording.payload() | {
        "names": [names[i] for i in recording.coordinates],
        "notes": notes,
        "marks": centers[:, recording.coordinates].tolist(),
    }
    number, weighed = recording.positions.shape[1], view.run.result.ess is not None
    alike = ", all drawn alike, whatever their weights" if weighed else ""
    note = f"{number:,} of {view.run.result.num_particles:,} particles{alike}; grey: "
    note += "where they are at the last moment. " + ("Crosses: the modes' centres. " if modes is not None else "")
    return Animation(note + "The arrow keys move the slider.", frames)


def _pairs(view: _View) -> Charts:
    dim, num, modes = len(view.coordinates.names), len(view.shown), view.modes
    heading = "Marginals and pairs" if dim > 1 else "Marginal"
    note = "Histograms are weighted, and a point is drawn as often as its weight says."
    if view.run.result.ess is None:
        note = f"The particles at t = {view.run.result.t:.4g}, which have no weights."
    if num < dim:
        note += f" Of {dim:,} coordinates these {num}: the least Gaussian, and the most dependent pair."
    if modes is not None and len(modes.masses) > 1:
        note += " Colours: modes, those of largest mass first: orange, blue, green, violet, and again."
    names = ", ".join(view.coordinates.names[i] for i in view.shown)
    drawing = Drawing(
        to_svg(view.figure, "pairs"), f"Histograms of {names}" + (", and scatter plots of each pair" if num > 1 else "")
    )
    return Charts(heading, note, [drawing], width=round(view.figure.get_figwidth(), 2))


def _coordinate_table(coordinates: Coordinates) -> Table:
    dim = len(coordinates.names)
    caption = "Weighted moments and quantiles of each coordinate."
    if dim > _MOST_ROWS:
        caption = f"Weighted moments and quantiles of the first {_MOST_ROWS} of {dim:,} coordinates."
    rows = [
        [coordinates.names[i], *[f"{value:.4g}" for value in coordinates.describe(i)]]
        for i in range(min(dim, _MOST_ROWS))
    ]
    return Table(caption, ["", "mean", "sd", "5%", "median", "95%"], rows, "Coordinates")


def _traces(result: Result) -> Charts | None:
    drawings, constant = draw_traces(result.trace)
    if not drawings:
        return None
    note = "Each diagnostic over the steps; dashed: a bound above which there is doubt."
    if constant:
        note += " Constant: " + ", ".join(f"{name} = {value:g}" for name, value in constant.items()) + "."
    return Charts("Along the way", note, drawings)
