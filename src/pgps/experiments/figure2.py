"""Figure 2: the density along log-weighted shrinkage paths (A), (B) and (C) in one dimension.

(A) alpha 0, beta 1; (B) alpha 1, beta 0.5; (C) alpha 0.2, beta 0.5. The two ends are not published; here they are those
of mode discovery, N(0, 3^2) and an equal mixture of N(0, 1) and N(8, 1).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import trapezoid

from pgps import reporting
from pgps.density import Problem
from pgps.experiments.base import AbstractExperiment, Cell, Claim, Findings, Record, Records
from pgps.paths import LogWeightedShrinkage
from pgps.reporting.figures import COLORS, INK
from pgps.targets import mode_discovery

PATHS = {"A": (0.0, 1.0), "B": (1.0, 0.5), "C": (0.2, 0.5)}
TIMES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
EARLY = 0.2
_GRID = (-12.0, 16.0)


class Figure2(AbstractExperiment):
    """Paths with and without shrinkage."""

    title = "Figure 2: log-weighted shrinkage paths"

    def seeds(self, preset: str) -> tuple[int, ...]:
        """One, since nothing is random."""
        return (0,)

    def cells(self, preset: str) -> list[Cell]:
        """One per path."""
        num = 2801 if preset == "paper" else 561
        return [_cell(letter, num) for letter in PATHS]

    def findings(self, preset: str, records: Records) -> Findings:
        """At t = 0.2 the second mode has far more mass on the paths with shrinkage than on the one without."""
        masses = {letter: records[letter].rows[0]["mass"][TIMES.index(EARLY)] for letter in PATHS}
        found = min(masses["B"], masses["C"]) > 2 * masses["A"]
        claim = Claim(
            "with (B) and (C) the right mode is there at an early stage (t = 0.2), unlike with (A)",
            f"mass of the right mode at t = {EARLY}: "
            + ", ".join(f"({letter}) {mass:.3f}" for letter, mass in masses.items())
            + " (in the end 0.5)",
            "reproduced" if found else "not reproduced",
            "The mode is there with (A) too, with a third of the mass or less.",
        )
        rows = [
            (f"({letter})", f"{alpha:g}", f"{beta:g}", *[f"{mass:.3f}" for mass in records[letter].rows[0]["mass"]])
            for letter, (alpha, beta) in PATHS.items()
        ]
        head = ("path", "alpha", "beta", *[f"t = {t:g}" for t in TIMES])
        return Findings(
            claims=(claim,),
            tables=(
                reporting.Table(
                    "Mass of the right mode along each path: right of the valley, or of 4 where there is none",
                    head,
                    rows,
                ),
            ),
            figure=_draw(records),
            caption="The density along paths (A), (B) and (C), from the initial law (left) to the target (right).",
            notes=("The paper does not say which densities its figure shows; these are those of mode discovery.",),
        )


def _cell(letter: str, num: int) -> Cell:
    alpha, beta = PATHS[letter]

    def run(_seeds: Sequence[int], _progress: bool | None) -> Record:
        x = np.linspace(*_GRID, num)
        density = _densities(alpha, beta, x)
        masses = [_right_mass(x, row) for row in density]
        return Record([{"mass": masses}], {"x": x, "density": density})

    return Cell(letter, {"alpha": alpha, "beta": beta, "times": list(TIMES), "grid": [*_GRID, num]}, run)


def _densities(alpha: float, beta: float, x: np.ndarray) -> np.ndarray:
    """The normalised density at each time (rows) and point."""
    problem, path = Problem.of(*mode_discovery()), LogWeightedShrinkage(alpha, beta, center=0.0)
    over_points = jax.vmap(lambda t, x: path.logdensity(t, x, problem), (None, 0))
    values = jax.vmap(over_points, (0, None))(jnp.asarray(TIMES), jnp.asarray(x, jnp.float32)[:, None])
    density = np.exp(np.asarray(values, float) - np.max(values, axis=1, keepdims=True))
    return density / trapezoid(density, x, axis=1)[:, None]


def _right_mass(x: np.ndarray, density: np.ndarray) -> float:
    """The mass right of the deepest point between the first and the last mode, or right of 4 if there is one mode."""
    peaks = np.flatnonzero((density[1:-1] > density[:-2]) & (density[1:-1] >= density[2:])) + 1
    start = int(np.searchsorted(x, 4.0))
    if len(peaks) > 1:
        start = peaks[0] + int(np.argmin(density[peaks[0] : peaks[-1]]))
    return float(trapezoid(density[start:], x[start:]))


def _draw(records: Records):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 2.6), layout="constrained")
    grid = figure.subplots(1, len(TIMES), sharex=True, sharey=True)
    for k, (axes, t) in enumerate(zip(grid, TIMES, strict=True)):
        for letter, color in zip(PATHS, (COLORS[1], COLORS[0], COLORS[2]), strict=True):
            arrays = records[letter].arrays
            axes.plot(arrays["x"], arrays["density"][k], color=color, linewidth=1.6, label=f"({letter})")
        axes.set_title(f"t = {t:g}", color=INK, fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, color=INK, labelcolor=INK)
    grid[0].legend(frameon=False, fontsize=9)
    return figure
