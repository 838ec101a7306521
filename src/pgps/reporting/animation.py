"""Particles along t, as an animated GIF."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8

from pgps.reporting._extra import check_installed
from pgps.reporting.figures import COLORS, INK, SHADING, Limits, draw_contours, mode_colors, tidy

_MOST_FRAMES = 60
_FRAME_MILLISECONDS = 80
_LAST_MILLISECONDS = 2500


@dataclass(frozen=True)
class Frame:
    """One moment.

    Attributes:
        title: What the reader should know of it, on one line.
        particles: Their positions.
        density: The law that the particles follow at this moment, on a grid over the limits.
    """

    title: str
    particles: Float[np.ndarray, "n 2"]
    density: Float[np.ndarray, "num num"]


def animate(
    frames: Sequence[Frame],
    modes: Int[np.ndarray, " n"],
    target: Float[np.ndarray, "num num"],
    limits: Limits,
) -> bytes:
    """An animated GIF: each frame's law as shading, the target as contours, particles as points.

    Args:
        frames: The moments; of more than 60, every so many are left out, but never the last.
        modes: The mode in which each particle ends, which is its colour throughout.
        target: The target's density on a grid over the limits.
        limits: The part of the plane that is shown.
    """
    check_installed()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    if not frames:
        raise ValueError("frames must hold at least one frame, got none; record them with pgps.sample's callback")
    frames = thin(frames)
    figure = Figure(figsize=(7.2, 4.9), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    shading = axes.imshow(frames[0].density, cmap=SHADING, vmin=0, vmax=2.2, extent=limits, origin="lower")
    draw_contours(axes, target, limits)
    tidy(axes)
    points = axes.scatter(*frames[0].particles.T, s=14, c=mode_colors(modes), alpha=0.8, linewidths=0)
    axes.set(xlim=limits[:2], ylim=limits[2:])
    title = axes.set_title(frames[0].title, loc="left", color=INK, fontsize=11)
    # The layout does not change from frame to frame, and costs as much as the drawing.
    canvas.draw()
    figure.set_layout_engine("none")

    pictures = []
    for frame in frames:
        shading.set_data(frame.density)
        points.set_offsets(frame.particles)
        title.set_text(frame.title)
        canvas.draw()
        pictures.append(np.array(canvas.buffer_rgba())[..., :3])
    palette = Image.new("P", (1, 1))
    palette.putpalette(_palette().tobytes())
    images = [Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    durations = [_FRAME_MILLISECONDS] * (len(images) - 1) + [_LAST_MILLISECONDS]
    buffer = io.BytesIO()
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    return buffer.getvalue()


def _palette() -> UInt8[np.ndarray, "256 3"]:
    """Greys for the shading, and tints of each mode's colour. One found by counting pixels would lose those few."""
    modes = [np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) for color in COLORS]
    ramps = [(np.zeros(3), 128), *((color, 128 // len(modes)) for color in modes)]
    # Pillow looks colours up at 6 bits: white stays white if no other entry is near it.
    palette = np.concatenate([np.linspace(color, np.full(3, 247.0), num) for color, num in ramps])
    palette[-1] = 255
    return palette.round().astype(np.uint8)


def thin(frames: Sequence[Frame]) -> list[Frame]:
    """At most as many frames as a GIF should have, evenly chosen, the first and the last among them."""
    chosen = np.linspace(0, len(frames) - 1, min(len(frames), _MOST_FRAMES)).round().astype(int)
    return [frames[i] for i in chosen]
