"""What the BNN tables show: scores by set and method, bold where one wins, and a picture of them."""

from collections.abc import Mapping, Sequence

import numpy as np

from pgps.experiments.base import Records, standard_error
from pgps.reporting import Table
from pgps.reporting.figures import COLORS, INK

METHODS = ("pgps", "svgd", "sgld", "pfg")
NAMES = {"pgps": "PGPS", "training-free": "training-free PGPS", "svgd": "SVGD", "sgld": "SGLD", "pfg": "PFG"}
# Scores of which more is better.
_RISING = ("accuracy",)


def score_table(
    records: Records,
    rows: Sequence[str],
    score: str,
    text: str,
    published: Mapping[str, Sequence[float]] | None = None,
    methods: Sequence[str] = METHODS,
) -> Table:
    """Mean and standard deviation over the runs, published means in brackets, bold for a clear winner."""
    lines = []
    for row in rows:
        winner = clear_winner(records, row, score, methods) if is_complete(records, row, methods) else None
        cells = []
        for column, method in enumerate(methods):
            if f"{row}-{method}" not in records:
                cells.append("not run" + (f" ({published[row][column]:.3f})" if published else ""))
                continue
            values = records[f"{row}-{method}"].values(score)
            cell = f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else np.nan:.3f}"
            cell = f"**{cell}**" if method == winner else cell
            cells.append(cell + (f" ({published[row][column]:.3f})" if published else ""))
        lines.append((row.upper(), *cells))
    brackets = ", published means in brackets" if published else ""
    caption = (
        f"{text[0].upper()}{text[1:]}, mean and standard deviation over the runs{brackets}; bold where a method beats "
        "every other by more than two standard errors of the paired difference"
    )
    return Table(caption, ("set", *[NAMES[method] for method in methods]), lines)


def is_complete(records: Records, row: str, methods: Sequence[str] = METHODS) -> bool:
    """Whether every method was run on a row."""
    return all(f"{row}-{method}" in records for method in methods)


def _gain(records: Records, row: str, score: str, first: str, second: str) -> np.ndarray:
    """By how much the first method is better than the second, run by run."""
    difference = records[f"{row}-{first}"].values(score) - records[f"{row}-{second}"].values(score)
    return difference if score in _RISING else -difference


def clear_winner(records: Records, row: str, score: str, methods: Sequence[str]) -> str | None:
    """The method that beats every other by more than two standard errors of the paired difference, if one does."""
    for method in methods:
        gains = [_gain(records, row, score, method, other) for other in methods if other != method]
        if all(np.mean(gain) > 2 * standard_error(gain) for gain in gains):
            return method
    return None


def at_least_equal(records: Records, row: str, score: str, method: str = "pgps") -> bool:
    """Whether a method is no worse than each other, by more than one standard error of the paired difference."""
    others = [other for other in METHODS if other != method]
    gains = [_gain(records, row, score, method, other) for other in others]
    return all(np.mean(gain) >= -standard_error(gain) for gain in gains)


def draw_scores(records: Records, rows: Sequence[str], scores: Mapping[str, str], methods: Sequence[str] = METHODS):
    """One panel per score: a group of points with standard errors for each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 1.6 + 2.2 * len(scores)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(scores)))
    for axes, (score, text) in zip(panels, scores.items(), strict=True):
        for i, method in enumerate(methods):
            places = [place for place, row in enumerate(rows) if f"{row}-{method}" in records]
            values = [records[f"{rows[place]}-{method}"].values(score) for place in places]
            x = np.array(places) + 0.16 * (i - (len(methods) - 1) / 2)
            errors = np.nan_to_num([standard_error(value) for value in values])
            means = [np.mean(value) for value in values]
            axes.errorbar(x, means, errors, fmt="o", color=COLORS[i], markersize=5, capsize=2, label=NAMES[method])
        axes.set_xticks(range(len(rows)), [row.upper() for row in rows])
        axes.set_xlim(-0.5, len(rows) - 0.5)
        axes.set_ylabel(text, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, color=INK, labelcolor=INK)
    # Above the panels: inside, it would lie on the points of a row.
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, ncols=len(methods), loc="outside upper right")
    return figure
