"""Drawings for a page: inline SVG whose texts and colours are the page's own, in the light and in the dark."""

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pgps.methods.base import Trace
from pgps.reporting.coordinates import Coordinates, resampled
from pgps.reporting.figures import COLORS, FAINT, INK, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = ("-", "--", ":", "-.")
"""One per run, for readers who cannot tell the colours apart."""

_SIZE = (3.6, 1.9)

# The page gives these their values.
_PALETTE = {INK: "currentColor", FAINT: "var(--axis)"} | {
    color: f"var(--series-{number})" for number, color in enumerate(COLORS, start=1)
}


@dataclass(frozen=True)
class Column:
    """How a column of the trace is drawn: its title, whether on a logarithmic axis, and a bound that it should keep."""

    title: str
    logarithmic: bool = False
    bound: float | None = None


_COLUMNS = {
    "t": Column("t, the time on the path"),
    "dt": Column("dt, the time step", logarithmic=True),
    "ess": Column("effective sample size"),
    "log_evidence": Column("log evidence so far"),
    "loss": Column("training loss", logarithmic=True),
    "r2": Column("held-out R² of the field"),
    "acceptance": Column("acceptance of the moves"),
    "evaluations": Column("calls for each particle so far"),
    "adjustment_steps": Column("moves after the step"),
    "training_steps": Column("training steps"),
    "pareto_k": Column("Pareto k of the weights", bound=0.7),
    "num_ancestors": Column("first ancestors left"),
    "disagreement": Column("islands apart, in standard errors", bound=4.0),
    "width_spread": Column("spread of local widths", bound=3.0),
    "covered": Column("distance covered by moves"),
    "reach": Column("length of a step, as a share of dt"),
    "ladder_bias": Column("bias of the evidence by the step's length"),
    "field_norm": Column("mean length of the field", logarithmic=True),
}


@dataclass(frozen=True)
class Drawing:
    """An inline SVG; `alternative` says in words what it shows."""

    svg: str
    alternative: str


def draw_traces(trace: Trace) -> tuple[list[Drawing], dict[str, float]]:
    """A small chart of each column over the steps, and the value of each column that never changes."""
    names = [*(name for name in _COLUMNS if name in trace), *sorted(set(trace) - set(_COLUMNS))]
    columns = {name: np.asarray(trace[name], float) for name in names}
    constant = {name: float(values[0]) for name, values in columns.items() if len(values) and _unchanging(values)}
    drawings = []
    for name, values in columns.items():
        if name in constant or not np.any(np.isfinite(values)):
            continue
        column = _COLUMNS.get(name, Column(name))
        svg = to_svg(_draw_column(values, column), f"trace-{len(drawings)}")
        finite = values[np.isfinite(values)]
        drawings.append(Drawing(svg, f"{column.title}: {finite[0]:.3g} at first, {finite[-1]:.3g} at last"))
    return drawings, constant


def _unchanging(values: Float[np.ndarray, " steps"]) -> bool:
    return len(values) > 1 and bool(np.all(values == values[0]))


def _draw_column(values: Float[np.ndarray, " steps"], column: Column) -> "Figure":
    figure, axes = _small_figure(column.title)
    steps = np.arange(1, len(values) + 1)
    axes.plot(steps, values, color=COLORS[1], linewidth=1.5, marker="." if len(values) < 40 else None, markersize=4)
    positive = values[np.isfinite(values) & (values > 0)]
    if column.logarithmic and len(positive) and positive.max() > 10 * positive.min():
        axes.set_yscale("log", nonpositive="mask")
        axes.minorticks_off()
    # A bound that nothing comes near would only flatten the curve.
    if column.bound is not None and np.nanmax(values) > 0.4 * column.bound:
        axes.axhline(column.bound, color=COLORS[0], linewidth=1, linestyle="--")
    axes.set_xlabel("step", color=INK, fontsize=8)
    return figure


def draw_overlay(name: str, runs: Sequence[Coordinates], prefix: str) -> Drawing:
    """One coordinate's weighted marginals in several runs, over each other."""
    figure, axes = _small_figure(name)
    columns = [(run.columns[:, run.names.index(name)], run.weights) for run in runs]
    # All but the outermost particles, which would leave the others no room.
    shown = [column[resampled(weights, min(len(weights), 2000))] for column, weights in columns]
    low, high = min(np.quantile(one, 0.005) for one in shown), max(np.quantile(one, 0.995) for one in shown)
    num = int(np.clip(math.sqrt(min(map(len, shown))), 8, 60))
    margin = 0.5 if high == low else 0.0
    edges = np.linspace(low - margin, high + margin, num + 1)
    for number, (column, weights) in enumerate(columns):
        heights = np.histogram(column, edges, weights=weights, density=True)[0]
        style = {"color": COLORS[number], "linestyle": LINES[number], "linewidth": 1.4}
        axes.stairs(heights, edges, fill=False, **style)
    axes.set_yticks([])
    return Drawing(to_svg(figure, prefix), f"Marginals of {name} in {len(runs)} runs, over each other")


def _small_figure(title: str) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=8)
    label(axes.set_title, title, loc="left", fontsize=9)
    return figure, axes


def to_svg(figure: "Figure", prefix: str) -> str:
    """A figure as SVG to be put into a page, under names that begin with `prefix`."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}), warnings.catch_warnings():
        # The browser has glyphs that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        FigureCanvasSVG(figure)
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    # A page knows these namespaces, and its own size for a drawing; names must be unique in it.
    head, _, body = svg.partition(">")
    svg = re.sub(r' (?:xmlns(?::xlink)?|version|width|height)="[^"]*"', "", head) + ">" + body
    svg = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"(font: [\d.]+px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    for color, name in _PALETTE.items():
        svg = svg.replace(color, name)
    return svg.strip()
