"""Tables and the picture of the theory's measurements, and the slopes that are read off them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pgps.experiments.base import Record, Records
from pgps.experiments.theory_cells import FREQUENCIES, Constants
from pgps.reporting import Table
from pgps.reporting.figures import COLORS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {"Gaussian": ("shift", "stretch"), "mixture": ("shift", "wave")}
"""The kinds of error that are added to the field of each problem."""

_SHOWN = {"Gaussian": 0.5, "mixture": 1.0}
_COLOR = {"Gaussian": COLORS[1], "mixture": COLORS[0]}
_GREY = "#868e96"


def select(record: Record, kind: str) -> list[dict[str, Any]]:
    """The rows of one kind."""
    return [row for row in record.rows if row["kind"] == kind]


def slope(rows: Sequence[Mapping[str, Any]], name: str, value: str = "w2") -> float:
    """The slope of ln(value) against ln(name)."""
    x, y = (np.log([row[key] for row in rows]) for key in (name, value))
    return float(np.polyfit(x, y, 1)[0])


def slopes(theorem: Records) -> tuple[dict[str, float], dict[str, float]]:
    """The slopes of W2 in h, over the finer half of the steps, and in delta, by problem and kind of error."""
    steps = {name: select(record, "none") for name, record in theorem.items()}
    in_h = {name: slope(rows[len(rows) // 2 :], "h") for name, rows in steps.items()}
    pairs = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
    return in_h, {f"{name} {kind}": slope(select(theorem[name], kind), "delta") for name, kind in pairs}


def ratios(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Error / (K L_t), which Proposition 4.4 bounds by 1."""
    return np.array([row["error"] / (row["K"] * row["loss"]) for row in rows])


def tables(theorem: Records, errors: Records, constants: Record) -> tuple[Table, ...]:
    """All measurements."""
    return (
        _step_table(theorem),
        _error_table(theorem),
        _constants_table(theorem),
        _proposition_table(errors),
        _growth_table(constants),
    )


def _step_table(theorem: Records) -> Table:
    head = ("h", *[text for name in theorem for text in (f"{name}: W2", "bound", "bound / W2")])
    columns = zip(*[select(record, "none") for record in theorem.values()], strict=True)
    rows = [(f"1/{group[0]['num_steps']}", *[text for row in group for text in _texts(row)]) for group in columns]
    return Table("Theorem 4.2: distance to the target with the exact field", head, rows)


def _error_table(theorem: Records) -> Table:
    pairs = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
    head = ("delta", *[text for pair in pairs for text in (f"{' '.join(pair)}: W2", "bound")])
    columns = zip(*[select(theorem[name], kind) for name, kind in pairs], strict=True)
    rows = [(f"{group[0]['delta']:g}", *[text for row in group for text in _texts(row)[:2]]) for group in columns]
    fine = max(row["num_steps"] for row in theorem["Gaussian"].rows)
    return Table(f"Theorem 4.2: distance to the target with a field of error delta, h = 1/{fine}", head, rows)


def _texts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{row['w2']:.5f}", f"{row['bound']:.3f}", f"{row['bound'] / row['w2']:,.0f}"


def _constants_table(theorem: Records) -> Table:
    rows = []
    for name, record in theorem.items():
        first = record.rows[0]
        box = zip(record.arrays["low"], record.arrays["high"], strict=True)
        region = " x ".join(f"[{low:.2f}, {high:.2f}]" for low, high in box)
        rows.append((name, region, *[f"{first[constant]:.2f}" for constant in Constants._fields]))
    return Table(
        "The exact field's constants over the region that is visited", ("problem", "region", "K1", "K2", "K3"), rows
    )


def _proposition_table(errors: Records) -> Table:
    rows = []
    for name, record in errors.items():
        for t in sorted({row["t"] for row in record.rows}):
            here = [row for row in record.rows if row["t"] == t]
            trained = [row for row in here if row["kind"] == "trained"]
            known = [row for row in here if row["kind"] != "trained"]
            last = trained[-1]
            row = (name, f"{t:g}", f"{here[0]['K']:.4f}", f"{ratios(known).max():.6f}", f"{ratios(trained).max():.3f}")
            rows.append((*row, f"{last['error']:.1e}", f"{last['loss']:.1e}"))
    head = (
        "problem",
        "t",
        "K",
        "known errors: largest error / (K L)",
        "network: largest error / (K L)",
        "network, last: error",
        "L",
    )
    return Table("Proposition 4.4: the smallest constant, and how near to it the fields come", head, rows)


def _growth_table(constants: Record) -> Table:
    rows = []
    for row in constants.rows:
        if "distance" in row:
            bound = Constants(*[row[name] for name in Constants._fields]).bound(0.0, 1 / 256)
            text = f"{bound:.1e}" if np.isfinite(bound) else "over 1e150"
            rows.append((f"two modes, {row['distance']:g} apart", f"{row['K']:.3g}", f"{row['K1']:.3g}", text))
        else:
            rows.append(
                (f"Student's t, errors within [-{row['radius']:g}, {row['radius']:g}]", f"{row['K']:.3g}", "", "")
            )
    head = ("target", "K at t = 1", "K1", "bound on W2 at h = 1/256")
    return Table("How the constants grow (modes of standard deviation 0.6, from N(0, 1))", head, rows)


def draw(theorem: Records, errors: Records) -> "Figure":
    """Distances and their bounds above, errors and losses below."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(11.0, 8.4), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.08, hspace=0.04))
    (step, error), below = figure.subplots(2, 2)
    _draw_steps(step, theorem)
    _draw_errors(error, theorem)
    for axes, (name, record) in zip(below, errors.items(), strict=True):
        _draw_proposition(axes, name, record)
    for axes in figure.axes:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[:].set_color("#adb5bd")
        axes.tick_params(which="both", color="#adb5bd", labelcolor=INK, labelsize=9)
    rows = select(theorem["Gaussian"], "none")
    step.set_xticks([row["h"] for row in rows], [f"1/{row['num_steps']}" for row in rows])
    deltas = [row["delta"] for row in select(theorem["Gaussian"], "shift")]
    error.set_xticks(deltas, [f"{delta:g}" for delta in deltas])
    return figure


def _draw_steps(axes: "Axes", theorem: Records) -> None:
    in_h, _ = slopes(theorem)
    for name, record in theorem.items():
        _draw_bounded(axes, select(record, "none"), "h", _COLOR[name], "o", f"{name}, slope {in_h[name]:.2f}")
    axes.plot([], color=_GREY, linestyle="--", linewidth=1.1, label="bound, slope 0.50")
    _label(axes, "Theorem 4.2: step size", "step size h", "$W_2$ to the target")


def _draw_errors(axes: "Axes", theorem: Records) -> None:
    _, in_delta = slopes(theorem)
    for name, kinds in KINDS.items():
        for kind, marker in zip(kinds, "o^", strict=True):
            label = f"{name}, {kind}, slope {in_delta[f'{name} {kind}']:.2f}"
            _draw_bounded(axes, select(theorem[name], kind), "delta", _COLOR[name], marker, label)
    axes.plot([], color=_GREY, linestyle="--", linewidth=1.1, label="their bounds")
    _label(axes, "Theorem 4.2: error of the field", r"error of the field $\delta$", "$W_2$ to the target")


def _draw_bounded(
    axes: "Axes", rows: Sequence[Mapping[str, Any]], name: str, color: str, marker: str, label: str
) -> None:
    x = [row[name] for row in rows]
    axes.plot(x, [row["w2"] for row in rows], color=color, marker=marker, markersize=5, linewidth=1.4, label=label)
    style: dict[str, Any] = {"marker": marker, "markersize": 3.5, "markerfacecolor": "white"}
    axes.plot(x, [row["bound"] for row in rows], color=color, linestyle="--", linewidth=1.1, **style)


def _draw_proposition(axes: "Axes", name: str, record: Record) -> None:
    rows = [row for row in record.rows if row["t"] == _SHOWN[name]]
    K = rows[0]["K"]
    loss = np.array([min(row["loss"] for row in rows) / 3, max(row["loss"] for row in rows) * 3])
    axes.plot(loss, K * loss, color=INK, linestyle="--", linewidth=1.1, label=f"$K L_t$ with K = {K:.3f}")
    for k, shade in zip(FREQUENCIES, ("#212529", "#495057", "#868e96", "#adb5bd", "#ced4da"), strict=True):
        known = [row for row in rows if row["kind"] == f"cos {k:g}x"]
        label = f"error cos({k:g}x)" if k else "constant error"
        axes.plot(*_points(known), color=shade, marker="s", markersize=5, linestyle="none", label=label)
    worst = [row for row in rows if row["kind"] == "worst"]
    style: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "linestyle": "none"}
    axes.plot(*_points(worst), color=COLORS[2], marker="o", **style, label="worst error")
    seed = min(row["seed"] for row in rows if row["kind"] == "trained")
    trained = [row for row in rows if row["kind"] == "trained" and row["seed"] == seed]
    axes.plot(
        *_points(trained), color=_COLOR[name], marker="o", markersize=5, linewidth=1.4, label="network in training"
    )
    ylabel = r"error of the field $E\,|\phi^\theta - \phi|^2$"
    _label(axes, f"Proposition 4.4: {name}, t = {_SHOWN[name]:g}", "loss $L_t$", ylabel)


def _points(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    return [row["loss"] for row in rows], [row["error"] for row in rows]


def _label(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold")
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
