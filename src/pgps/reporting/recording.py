"""Where particles were along t: recorded by a callback, kept as `frames.npz`, and put into a page as text.

A callback makes the host stop after every step, which costs milliseconds of each: less than compiling does, unless
steps are many. What is kept is bounded, whatever the numbers of steps, particles and coordinates are.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from pgps.reporting.coordinates import flatten
from pgps.run import Snapshot

FILE = "frames.npz"

MOST_FRAMES = 60
_MOST_PARTICLES = 500
_MOST_COORDINATES = 128
_LEVELS = 65_535


@dataclass(frozen=True)
class Recording:
    """Particles at some moments.

    Attributes:
        t: The time of each moment.
        step: How many steps had been taken.
        coordinates: Which coordinates were kept.
        positions: Where the particles were.
    """

    t: Float[np.ndarray, " frames"]
    step: Int[np.ndarray, " frames"]
    coordinates: Int[np.ndarray, " kept"]
    positions: Float[np.ndarray, "frames n kept"]

    def select(self, coordinates: Sequence[int]) -> "Recording":
        """The same moments with fewer coordinates."""
        columns = [int(np.flatnonzero(self.coordinates == index)[0]) for index in coordinates]
        return Recording(self.t, self.step, self.coordinates[columns], self.positions[..., columns])

    def save(self, folder: Path) -> None:
        """Write `frames.npz` into a folder that exists."""
        with (folder / FILE).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **vars(self))

    @classmethod
    def load(cls, folder: Path, dim: int) -> "Recording | None":
        """Read `frames.npz` back; None if there is none. `dim` is the number of coordinates of the run."""
        if not (folder / FILE).exists():
            return None
        with (folder / FILE).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in cls.__dataclass_fields__}
        t, step, coordinates, positions = arrays.values()
        frames, _, kept = positions.shape
        fits = t.shape == step.shape == (frames,) and coordinates.shape == (kept,) and positions.size > 0
        whole = all(np.issubdtype(array.dtype, np.integer) for array in (step, coordinates))
        real = all(np.issubdtype(array.dtype, np.floating) for array in (t, positions))
        if not fits or not whole or not real or not np.all((coordinates >= 0) & (coordinates < dim)):
            raise ValueError(f"{FILE} does not fit the run")
        if not np.all(np.isfinite(t)) or not np.all(np.isfinite(positions)):
            raise ValueError(f"{FILE} holds numbers that are not finite")
        return cls(**arrays)

    def payload(self) -> dict[str, Any]:
        """The moments for a page: 16 bits a number, between the least and the largest of each frame and coordinate."""
        low, high = self.positions.min(axis=1).astype(float), self.positions.max(axis=1).astype(float)
        spread = np.where(high > low, high - low, 1.0)
        levels = np.rint((self.positions - low[:, None]) / spread[:, None] * _LEVELS).astype("<u2")
        return {
            "number": int(self.positions.shape[1]),
            "low": low.tolist(),
            "high": high.tolist(),
            "data": base64.b64encode(np.ascontiguousarray(levels.transpose(0, 2, 1)).tobytes()).decode(),
        }


class Recorder:
    """A callback for `pgps.sample` that keeps some particles at some moments; the last one is always among them.

    Args:
        num_frames: How many moments, at most.
    """

    def __init__(self, num_frames: int = MOST_FRAMES):
        self._num_frames = num_frames
        self._stride = 1
        self._kept: list[tuple[float, int, np.ndarray]] = []
        self._last: Snapshot | None = None
        self._first: Recording | None = None
        self._coordinates = np.arange(0)

    def __call__(self, snapshot: Snapshot) -> None:
        """Take a look."""
        if self._last is not None and snapshot.num_steps <= self._last.num_steps:
            # Made again, from another law; if that run is cut short, it is the first one that counts.
            self._first = self.recording()
            self._kept, self._stride = [], 1
        self._last = snapshot
        if snapshot.num_steps % self._stride == 0:
            self._kept.append((snapshot.t, snapshot.num_steps, self._look(snapshot.particles)))
        if len(self._kept) > 2 * self._num_frames:
            self._stride *= 2
            self._kept = [moment for moment in self._kept if moment[1] % self._stride == 0]

    def recording(self) -> Recording | None:
        """What was seen; None if nothing was."""
        if self._last is None:
            return None
        moments, last = list(self._kept), self._last
        if self._first is not None and last.t < 1:
            return self._first
        if moments[-1][1] != last.num_steps:
            moments.append((last.t, last.num_steps, self._look(last.particles)))
        chosen = np.unique(np.linspace(0, len(moments) - 1, min(len(moments), self._num_frames)).round().astype(int))
        t, step, positions = zip(*[moments[i] for i in chosen], strict=True)
        return Recording(np.array(t), np.array(step), self._coordinates, np.stack(positions))

    def _look(self, particles: PyTree) -> Float[np.ndarray, "n kept"]:
        """Some particles, evenly chosen, so that each island has its share, and some coordinates if there are many."""
        number = len(jax.tree.leaves(particles)[0])
        shown = np.linspace(0, number - 1, min(number, _MOST_PARTICLES)).round().astype(int)
        columns = flatten(jax.tree.map(lambda leaf: np.asarray(leaf)[shown], particles))
        dim = columns.shape[1]
        self._coordinates = np.linspace(0, dim - 1, min(dim, _MOST_COORDINATES)).round().astype(int)
        return columns[:, self._coordinates].astype(np.float32)
