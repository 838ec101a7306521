"""Pictures of predictions: the reliability diagram, and examples that are hard to tell."""

import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from pgps.metrics import Reliability
from pgps.reporting.figures import COLORS, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 6


def draw_reliability(bins: Reliability) -> "Figure":
    """Accuracy against confidence, bin by bin, over a histogram of the confidence."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, height_ratios=(3, 1), sharex=True)
    full = bins.counts > 0
    middles, width = 0.5 * (bins.edges[:-1] + bins.edges[1:]), np.diff(bins.edges)
    upper.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle="--")
    upper.bar(middles[full], bins.accuracy[full], width[full] * 0.92, color=COLORS[1], alpha=0.35)
    upper.plot(bins.confidence[full], bins.accuracy[full], "o-", color=COLORS[1], markersize=5)
    upper.set(xlim=(0, 1), ylim=(0, 1.02))
    upper.set_ylabel("share that is right", color=INK)
    lower.bar(middles, bins.counts, width * 0.92, color=COLORS[0], alpha=0.6)
    lower.set_xlabel("confidence", color=INK)
    lower.set_ylabel("rows", color=INK)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9, color=INK, labelcolor=INK)
    return figure


def draw_examples(
    images: Float[np.ndarray, "n height width"],
    labels: Int[np.ndarray, " n"],
    probabilities: Float[np.ndarray, "n classes"],
    entropies: Float[np.ndarray, " n"],
) -> "Figure":
    """Images with their label and the two classes that are likeliest."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(images) / _COLUMNS)
    figure = Figure(figsize=(1.7 * _COLUMNS, 2.15 * rows), layout="constrained")
    grid = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, image, label, p, entropy in zip(grid.flat, images, labels, probabilities, entropies, strict=False):
        first, second = np.argsort(-p)[:2]
        axes.imshow(image, cmap="gray_r", interpolation="nearest")
        color = COLORS[2] if first == label else COLORS[0]
        said = f"{first} {p[first]:.0%}, {second} {p[second]:.0%}"
        axes.set_title(f"a {label}; {entropy:.2f} nats\n{said}", fontsize=8, color=color)
    return figure
