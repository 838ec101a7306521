"""Still pictures: particles over a density, panel by panel, and the marginals of any result.

Figures are drawn with matplotlib's object API on the Agg canvas, so that no global state is touched and no
display is needed.
"""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar

from pgps.reporting._extra import check_installed
from pgps.reporting.coordinates import MOST_SHOWN, resampled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#d9480f", "#1864ab", "#2b8a3e", "#862e9c")
"""One per mode: told apart in print and by colour-blind readers."""

INK = "#343a40"
FAINT = "#adb5bd"
SHADING = "Greys"

# For a Gaussian mode these are one, two and three standard deviations.
CONTOURS = tuple(math.exp(-0.5 * radius**2) for radius in (3, 2, 1))

_MOST_POINTS = 4000
_LONGEST_LABEL = 40


class Limits(NamedTuple):
    """The part of the plane that is shown."""

    left: float
    right: float
    bottom: float
    top: float

    def covering(self, particles: Float[np.ndarray, "n 2"], margin: float = 0.03) -> "Limits":
        """These limits, widened where particles lie outside."""
        (x_low, y_low), (x_high, y_high) = particles.min(axis=0) - margin, particles.max(axis=0) + margin
        return Limits(
            min(self.left, float(x_low)),
            max(self.right, float(x_high)),
            min(self.bottom, float(y_low)),
            max(self.top, float(y_high)),
        )


@dataclass(frozen=True)
class Panel:
    """One panel: particles, coloured by the mode that each belongs to.

    Attributes:
        title: What is shown.
        note: A second line: what to read off it.
        particles: Their positions.
        modes: Each particle's mode.
    """

    title: str
    note: str
    particles: Float[np.ndarray, "n 2"]
    modes: Int[np.ndarray, " n"]


def density_grid(
    logdensity_fn: Callable[[Float[Array, "2"]], Scalar], limits: Limits, num: int = 240
) -> Float[Array, "num num"]:
    """A density on a grid, relative to its largest value there; rows go from bottom to top."""
    x, y = jnp.linspace(limits.left, limits.right, num), jnp.linspace(limits.bottom, limits.top, num)
    values = jax.vmap(jax.vmap(logdensity_fn))(jnp.stack(jnp.meshgrid(x, y), axis=-1))
    return jnp.exp(values - jnp.max(values))


def draw_panels(
    panels: Sequence[Panel], density: Float[np.ndarray, "num num"], limits: Limits, columns: int = 2
) -> "Figure":
    """Panels on common axes, some in a row, each over the shading and the contours of `density`."""
    check_installed()
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.8 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_density(axes, density, limits)
        axes.scatter(*panel.particles.T, s=11, c=mode_colors(panel.modes), alpha=0.75, linewidths=0)
        axes.set_title(panel.title, loc="left", color=INK, fontsize=12, fontweight="bold")
        axes.set_title(panel.note, loc="right", color=INK, fontsize=10)
        axes.label_outer()
    return figure


def draw_density(axes: "Axes", density: Float[np.ndarray, "num num"], limits: Limits) -> None:
    """Shade a density, outline its modes and set up the axes around it."""
    axes.imshow(density, cmap=SHADING, vmin=0, vmax=2.2, extent=limits, origin="lower", interpolation="bilinear")
    draw_contours(axes, density, limits)
    tidy(axes)


def draw_contours(axes: "Axes", density: Float[np.ndarray, "num num"], limits: Limits) -> None:
    """Outline a density at one, two and three standard deviations of a Gaussian mode."""
    axes.contour(density, levels=CONTOURS, extent=limits, colors=INK, linewidths=0.7, alpha=0.55)


def tidy(axes: "Axes") -> None:
    """Thin grey axes of equal scale."""
    axes.set_aspect("equal")
    axes.spines[:].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=9)


def mode_colors(modes: Int[np.ndarray, " n"]) -> list[str]:
    """A colour for each particle."""
    return [COLORS[mode % len(COLORS)] for mode in modes]


def draw_pairs(
    columns: Float[np.ndarray, "n dim"],
    weights: Float[np.ndarray, " n"],
    names: Sequence[str],
    modes: Int[np.ndarray, " n"] | None = None,
) -> "Figure":
    """Weighted marginals of the first coordinates on the diagonal, and each pair of them below it.

    Args:
        columns: The particles.
        weights: Their weights: a point is drawn as often as its weight says.
        names: A name for each coordinate.
        modes: Each particle's mode, which is its colour; one colour for all if None.
    """
    check_installed()
    from matplotlib.figure import Figure

    dim = min(columns.shape[1], MOST_SHOWN)
    num = min(int(np.count_nonzero(weights)), _MOST_POINTS // max(dim * (dim - 1) // 2, 1))
    points = resampled(weights, num)
    colors = COLORS[1] if modes is None else mode_colors(modes[points])
    side = max(1.9 * dim + 0.6, 4.6)
    figure = Figure(figsize=(side, side if dim > 1 else 3.2), layout="constrained")
    grid = figure.subplots(dim, dim, sharex="col", squeeze=False)
    for row in range(dim):
        for column in range(dim):
            axes = grid[row, column]
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[:].set_color(FAINT)
            axes.tick_params(labelsize=8, color=FAINT, labelcolor=INK)
            if column > row:
                axes.set_visible(False)
            elif column == row:
                _draw_marginal(axes, columns[:, row], weights)
            else:
                x, y = columns[points, column], columns[points, row]
                axes.scatter(x, y, s=6, c=colors, alpha=0.5, linewidths=0)
            if row == dim - 1:
                label(axes.set_xlabel, names[column])
            if column == 0 and row > 0:
                label(axes.set_ylabel, names[row])
    return figure


def _draw_marginal(axes: "Axes", values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]) -> None:
    shown = weights > 0
    bins = int(np.clip(math.sqrt(np.count_nonzero(shown)), 8, 60))
    axes.hist(values[shown], bins=bins, weights=weights[shown], density=True, color=COLORS[1], alpha=0.8)
    axes.set_yticks([])


def label(write: Callable[..., Any], text: str, **options: Any) -> None:
    """Write a text of the user's: a dollar in it opens no formula, and it does not run out of the picture."""
    short = text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"
    write(short, color=INK, parse_math=False, **options)


def encode(figure: "Figure", kind: str) -> bytes:
    """A figure as the bytes of a file: `png` or `svg`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A name that matplotlib's font cannot write is no reason to trouble the user.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        figure.savefig(buffer, format=kind, dpi=150, facecolor="white")
    return buffer.getvalue()
