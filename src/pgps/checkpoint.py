"""Checkpoints: a run on disk, all of it, so that it can go on after it was cut off and end with the same bits.

Step k's randomness comes from the key and k alone, so the state between two steps, the trace so far and the key are a
whole run. The file also holds the run's fingerprint: another run is refused, with the difference.
"""

import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pgps import _checks, storage
from pgps.fingerprint import difference


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where a run is kept on disk. If the file is there, the run goes on from it.

    Args:
        path: The file. It is replaced at once by each new state, and kept when the run is done.
        every: Seconds between two writes; 0 writes after every chunk of steps.
    """

    path: str | Path
    every: float = 60.0

    def __post_init__(self):
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise TypeError(f"path must be a file's name, got {_checks.show(self.path)}; as in 'run.checkpoint'")
        _checks.within("every", self.every, 0, math.inf)


class Kept(NamedTuple):
    """A run as it was when it was written, or as it begins."""

    runs: PyTree
    rows: list[PyTree]
    """The trace so far, for each run."""
    seconds: float
    """What the run has taken so far."""
    resumed_at: list[float]
    """The times t from which it went on before."""


class Keeper:
    """Reads and writes the checkpoint of one run, which its fingerprint tells from others."""

    def __init__(self, checkpoint: Checkpoint, fingerprint: dict[str, Any]):
        self.path = Path(checkpoint.path)
        self.every = checkpoint.every
        self.fingerprint = fingerprint
        self.failure: str | None = None
        self._last_write = -math.inf
        _check_place(self.path)

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.perf_counter() - self._last_write >= self.every

    def read(self, runs: PyTree, rows: PyTree) -> Kept | None:
        """What the file holds; None if there is none.

        Args:
            runs: The shapes of the runs.
            rows: The shapes of their rows, with the axes over runs and steps in front.
        """
        try:
            record, arrays = storage.read_file(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(
                f"checkpoint {self.path} cannot be read ({_reason(error)}); choose another file"
            ) from error
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), rows)
        with storage.refusing(storage.damaged(self.path)):
            found = difference(record["fingerprint"], self.fingerprint)
            kept = (
                None
                if found
                else Kept(
                    _unpack("runs", arrays, runs),
                    [_unpack(f"rows/{i}", arrays, rows, num) for i, num in enumerate(record["num_rows"])],
                    float(record["seconds"]),
                    [float(t) for t in record["resumed_at"]],
                )
            )
        if found:
            remedy = "change it back to go on, or choose another file to begin anew"
            raise ValueError(f"checkpoint {self.path} is of another run: {found}; {remedy}")
        return kept

    def begin(self, kept: Kept) -> None:
        """Write for the first time, or raise: a run whose checkpoint cannot be written should not start."""
        storage.remove_drafts(self.path)
        try:
            self._write(kept)
        except OSError as error:
            raise ValueError(f"checkpoint {self.path} cannot be written ({_reason(error)}); choose another") from error

    def write(self, kept: Kept) -> None:
        """Write the run as it is; if that fails, say so at its end and let it go on, with the old file in place."""
        try:
            self._write(kept)
        except OSError as error:
            self._last_write = time.perf_counter()
            self.failure = f"the checkpoint {self.path} could not be written ({_reason(error)}); an older one is there"
        else:
            self.failure = None

    def _write(self, kept: Kept) -> None:
        arrays = _pack("runs", kept.runs)
        for i, rows in enumerate(kept.rows):
            arrays |= _pack(f"rows/{i}", rows)
        record = {
            "fingerprint": self.fingerprint,
            "num_rows": [len(jax.tree.leaves(rows)[0]) for rows in kept.rows],
            "seconds": kept.seconds,
            "resumed_at": kept.resumed_at,
        }
        storage.replace_file(self.path, record, arrays)
        self._last_write = time.perf_counter()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _check_place(path: Path) -> None:
    try:
        home = next(parent for parent in path.absolute().parents if parent.exists())
        is_other = path.exists() and not path.is_file()
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be used ({_reason(error)}); choose another file") from error
    if is_other:
        raise ValueError(f"checkpoint must be a file, but {path} is a folder or a device; choose another name")
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        raise ValueError(f"checkpoint must lie where files can be made, but {home} is not such a place; choose another")


def _pack(name: str, tree: PyTree) -> dict[str, np.ndarray]:
    return {f"{name}/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _unpack(name: str, arrays: dict[str, np.ndarray], like: PyTree, num: int | None = None) -> PyTree:
    """A pytree from its arrays: on the device as `like` or, with `num` rows of such leaves, on the host."""
    leaves, treedef = jax.tree.flatten(like)
    found = []
    for i, leaf in enumerate(leaves):
        array = arrays[f"{name}/{i}"]
        shape = leaf.shape if num is None else (num, *leaf.shape)
        # NumPy's files know no bfloat16: such numbers come back as plain bytes.
        array = array.view(leaf.dtype) if array.dtype.kind == "V" else array
        if array.shape != shape or array.dtype != leaf.dtype:
            raise ValueError(f"{name}/{i} is {array.dtype}{list(array.shape)}, not {leaf.dtype}{list(shape)}")
        found.append(array if num is not None else jnp.asarray(array))
    return jax.tree.unflatten(treedef, found)
