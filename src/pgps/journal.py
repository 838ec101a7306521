"""The host's record of runs: how they are, and the rows of their traces so far."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from pgps.checkpoint import Kept
from pgps.methods.base import Row, Trace
from pgps.result import Status


class Journal:
    """Runs, chunk by chunk.

    Args:
        kept: How they begin, or were left.
        start: When they began, by `time.perf_counter`.
    """

    def __init__(self, kept: Kept, start: float):
        self.runs = kept.runs
        self._resumed_at = kept.resumed_at
        self._chunks = [kept.rows] if kept.rows else []
        # As if all sessions had been one.
        self._start = start - kept.seconds

    @property
    def is_running(self) -> bool:
        """Whether any run has steps to take."""
        return bool(np.any(np.asarray(self.runs.status) == Status.RUNNING))

    def add(self, runs: PyTree, buffer: Row, counts: Int[Array, " lanes"]) -> int:
        """Take note of a chunk; returns how many steps of the first run are in it."""
        buffer, counts = jax.tree.map(np.asarray, (buffer, counts))
        self._chunks.append([_filled(buffer, i, count) for i, count in enumerate(counts)])
        self.runs = runs
        return int(counts[0])

    def end(self, status: Status) -> None:
        """Those that still run have ended."""
        if not self.is_running:
            return
        ended = jnp.where(self.runs.status == Status.RUNNING, int(status), self.runs.status)
        self.runs = eqx.tree_at(lambda runs: runs.status, self.runs, ended)

    def rows(self) -> list[Trace]:
        """Each run's rows, put together."""
        lanes = zip(*self._chunks, strict=True)
        joined = [jax.tree.map(lambda *parts: np.concatenate(parts), *chunks) for chunks in lanes]
        self._chunks = [joined]
        return joined

    def last_rows(self) -> Trace:
        """The latest rows of the first run."""
        return self._chunks[-1][0]

    def kept(self) -> Kept:
        """All of it, for the disk."""
        return Kept(self.runs, self.rows(), time.perf_counter() - self._start, self._resumed_at)


def _filled(buffer: Row, lane: int, count: int) -> Trace:
    """One run's rows of a chunk, copied: a view would keep the whole buffer in memory, chunk after chunk."""
    return jax.tree.map(lambda values: values[lane, :count].copy(), buffer)
