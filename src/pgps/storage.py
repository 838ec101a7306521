"""Results and checkpoints on disk. Nothing is pickled.

A result is a folder with `result.json` and `particles.npz`, and is never overwritten. A checkpoint is one file: a line
with the format and the SHA-256 of the rest, which is an npz archive with a JSON record in it. A new one takes the old
one's place when it is complete and on the disk.
"""

import collections
import contextlib
import glob
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

# Archives, JSON and arrays that were cut off or altered fail in a dozen ways; these alone are about the file's place.
_ELSEWHERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)

_FORMAT = 1
_RECORD = "result.json"
_ARRAYS = "particles.npz"

_CHECKPOINT_FORMAT = 1
_HEADER = "pgps-checkpoint {format} {checksum}\n"
_LONGEST_HEADER = 200
_DRAFT = ".part"


def cache_folder() -> Path:
    """What can be had again, data sets and compiled programs, is kept here: `PGPS_CACHE_DIR`, else `~/.cache/pgps`."""
    return Path(os.environ.get("PGPS_CACHE_DIR") or Path.home() / ".cache" / "pgps")


@contextlib.contextmanager
def refusing(refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into the error that `refusal` makes of the reason."""
    try:
        yield
    except _ELSEWHERE:
        raise
    except Exception as error:
        own = isinstance(error, ValueError) and str(error)
        reason = " ".join((str(error) if own else f"{type(error).__name__}: {error}").split())
        raise refusal(reason if len(reason) <= 160 else f"{reason[:157]}...") from error


def check_free(path: Path) -> None:
    """Raise unless `path` can become a new folder: it does not exist, or is an empty one."""
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"out must be a folder, but {path} is a file; choose another name")
    if path.is_dir() and any(path.iterdir()):
        raise FileExistsError(f"out must be new or empty, but {path} holds files; choose another folder or empty it")


def write(path: Path, record: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """Write both files into the folder `path`, all or nothing."""
    check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder that is there may be a link, a mount or the current one, none of which can be replaced.
    is_there = path.is_dir()
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path if is_there else path.parent))
    try:
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        record = {"format": _FORMAT, **record, "dtypes": _small_floats(arrays)}
        text = json.dumps(record, indent=2, allow_nan=False)
        (draft / _RECORD).write_text(text + "\n", encoding="utf-8")
        with (draft / _ARRAYS).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        if is_there:
            # The record comes last: without it there is no result.
            for name in (_ARRAYS, _RECORD):
                os.replace(draft / name, path / name)
            draft.rmdir()
        else:
            draft.chmod(0o755)
            os.replace(draft, path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return path


def damaged_result(path: Path) -> Callable[[str], ValueError]:
    """What to say of a result that cannot be read, by the reason."""
    return lambda reason: ValueError(f"path {path} holds a damaged result ({reason}); restore it or run again")


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read both files back."""
    try:
        with refusing(damaged_result(path)):
            record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
            # numpy leaves a file that it has opened itself, and cannot read, open.
            with (path / _ARRAYS).open("rb") as file:
                arrays = read_archive(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            f"path must be a folder that Result.save wrote, but {error.filename} is missing; check the path"
        ) from None
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise ValueError(f"path {path} holds no result of format {_FORMAT}; read it with the version that wrote it")
    with refusing(damaged_result(path)):
        for name, dtype in record.get("dtypes", {}).items():
            arrays[name] = arrays[name].view(dtype)
    return record, arrays


def read_archive(file: io.BufferedIOBase) -> dict[str, np.ndarray]:
    """The arrays of an npz archive; no object in it is unpickled."""
    found = np.load(file, allow_pickle=False)
    if not isinstance(found, np.lib.npyio.NpzFile):
        raise ValueError("it holds one array without a name")
    with found:
        return dict(found)


def _small_floats(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """The names of dtypes that NumPy's files do not know, such as bfloat16: they come back as plain bytes."""
    return {name: array.dtype.name for name, array in arrays.items() if array.dtype.kind == "V"}


def replace_file(path: Path, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a checkpoint in place of the one that `path` holds; whenever this ends, one of them is there, complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", suffix=_DRAFT, dir=path.parent)
    try:
        with os.fdopen(handle, "w+b") as file:
            _write_archive(file, record, arrays)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    # Not every system lets a folder be synchronised; then a power cut may bring the old checkpoint back, complete.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_drafts(path: Path) -> None:
    """Remove what processes that were killed while they wrote the checkpoint `path` have left."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}-*{_DRAFT}"):
        with contextlib.suppress(OSError):
            draft.unlink()


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a checkpoint back, or raise ValueError."""
    with path.open("rb") as file:
        header = file.readline(_LONGEST_HEADER)
        match header.decode("ascii", "replace").split():
            case ["pgps-checkpoint", version, checksum]:
                pass
            case _:
                raise ValueError(f"checkpoint {path} is no checkpoint of pgps; choose another file")
        if version != str(_CHECKPOINT_FORMAT):
            raise ValueError(
                f"checkpoint {path} has format {version}, not {_CHECKPOINT_FORMAT}; go on with the pgps that wrote it"
            )
        if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
            raise damaged(path)("its checksum is wrong")
        file.seek(len(header))
        with refusing(damaged(path)):
            arrays = read_archive(file)
            return json.loads(arrays.pop("record").tobytes()), arrays


def damaged(path: Path) -> Callable[[str], ValueError]:
    """What to say of a checkpoint that cannot be used, by the reason."""
    remedy = "restore it, or choose another file to begin anew"
    return lambda reason: ValueError(f"checkpoint {path} is damaged ({reason}); {remedy}")


def _write_archive(file: io.BufferedRandom, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    text = json.dumps(record, allow_nan=False).encode()
    blank = _HEADER.format(format=_CHECKPOINT_FORMAT, checksum="0" * 64).encode()
    file.write(blank)
    np.savez(file, allow_pickle=False, record=np.frombuffer(text, np.uint8), **arrays)
    file.seek(len(blank))
    checksum = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    file.write(_HEADER.format(format=_CHECKPOINT_FORMAT, checksum=checksum).encode())


def encode_tree(tree: PyTree) -> tuple[Any, list[Any]]:
    """Split a pytree into its skeleton, as JSON, and its leaves; unknown containers keep their leaves' paths."""
    leaves: list[Any] = []

    def encode(node: Any) -> Any:
        if node is None:
            return {"kind": "none"}
        if isinstance(node, dict) and all(isinstance(key, str) for key in node):
            # In the order in which JAX has their leaves.
            keys = node if isinstance(node, collections.OrderedDict) else sorted(node)
            return {"kind": "dict", "items": {key: encode(node[key]) for key in keys}}
        if type(node) in (list, tuple):
            return {"kind": type(node).__name__, "items": [encode(item) for item in node]}
        if jax.tree.structure(node) == jax.tree.structure(0):
            leaves.append(node)
            return {"kind": "leaf", "index": len(leaves) - 1}
        items = {jax.tree_util.keystr(name): leaf for name, leaf in jax.tree_util.tree_leaves_with_path(node)}
        return {"kind": "dict", "items": {name: encode(leaf) for name, leaf in items.items()}}

    return encode(tree), leaves


def decode_tree(skeleton: Any, leaves: list[np.ndarray]) -> PyTree:
    """Rebuild a pytree from `encode_tree`'s output."""

    def decode(node: Any) -> Any:
        match node["kind"]:
            case "none":
                return None
            case "leaf":
                return jnp.asarray(leaves[node["index"]])
            case "dict":
                return {key: decode(item) for key, item in node["items"].items()}
            case kind:
                return {"list": list, "tuple": tuple}[kind](decode(item) for item in node["items"])

    return decode(skeleton)


def shaped_like(leaves: list[np.ndarray], like: PyTree) -> PyTree:
    """Leaves of `encode_tree` in the structure of `like`."""
    treedef = jax.tree.structure(like)
    if treedef.num_leaves != len(leaves):
        raise ValueError(
            f"like must have {len(leaves)} leaves, as the particles on disk have, got {treedef.num_leaves}; "
            "pass a particle of the run that was saved"
        )
    return jax.tree.unflatten(treedef, [jnp.asarray(leaf) for leaf in leaves])
