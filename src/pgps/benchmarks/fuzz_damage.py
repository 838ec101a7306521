"""Ways to damage what a command line is given: words, bytes, JSON, arrays, checkpoints whose checksum still fits."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Values of options. None is allowed and huge at once: that would be a valid run that does not fit into memory.
JUNK = ["", " ", "-", "--", "---", "-1", "0", "1", "nan", "inf", "-inf", "1e999", "1e-999", "99999999999999999999"]
JUNK += ["9" * 5000, "0x10", "1_0", "٣", "🦉", "é\n\nb", "\x1b[31mred", "a\tb", "\r\n", "\udcff", "\0", "%s%n{}", "*"]
JUNK += ["../elsewhere", "x" * 300, "x/" * 3000, "nowhere/there", "model.py", "model.py:", ":logdensity", "model.py:no"]
JUNK += ["model.py:CONSTANT", "model.py:log", "model.py:nothing", "model.py:fails", "model.py:line", "run:logdensity"]
JUNK += ["run", "kept", "rows.csv", "run/result.json", ".", "options.toml", "normal:0", "normal:0,1,2", "uniform:1,-1"]
JUNK += ["normal:nan,1", "normal:0,0", "1,2,3", ",,,", "9-0", "0-9999,0-9999", "1,1", "--help", "true", "[", "fuzz"]

TOML = ["nan", "inf", "-1", "0", "0.5", "1e400", "9" * 50, "9" * 5000, "true", '""', '"\\u0000"', '"a\\nb"', "[1, 2]"]
TOML += ["[]", "[[1], [2]]", "{a = 1}", "1979-05-27", '"🦉"', f"'{'x' * 5000}'", "[" * 3000 + "]" * 3000, '"-"', '"--"']
TOML += ['"model.py"', '"../elsewhere"', '"run"', "=", "", '"\\ud800"']

_JSON = [None, True, 0, -1, 1e308, 10**30, float("nan"), "", "nan", "🦉\n", "x" * 1000, [], {}, [[]], {"a": 1}]
_NO_JSON = [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"null", b"\xef\xbb\xbf{}", b"9" * 9999]


class _Intruder:
    """Leaves a file behind if it is ever unpickled."""

    def __reduce__(self) -> tuple[Callable, tuple]:
        return open, ("unpickled", "w")


def pick(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    """One of several."""
    return options[int(rng.integers(len(options)))]


def damage_bytes(rng: np.random.Generator, content: bytes) -> bytes:
    """Cut off, altered, emptied, or something else altogether."""
    place, size = int(rng.integers(len(content) + 1)), int(rng.integers(1, 40))
    match rng.integers(8):
        case 0:
            return content[:place]
        case 1:
            return b""
        case 2:
            return rng.bytes(size)
        case 3:
            return content[:place] + rng.bytes(size) + content[place:]
        case 4:
            return content[:place] + content[place + size :]
        case 5:
            return content[:place] + bytes(size) + content[place + size :]
        case 6:
            return content + content[place:]
        case _:
            altered = bytearray(content)
            for _ in range(int(rng.integers(1, 4))):
                altered[int(rng.integers(len(altered)))] ^= 1 << int(rng.integers(8))
            return bytes(altered)


def damage_words(rng: np.random.Generator, argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Arguments with some words replaced, left out, repeated, cut off or made up."""
    argv = list(argv)
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(argv) + 1))
        match rng.integers(8):
            case 0:
                del argv[place : place + 1]
            case 1:
                argv[place:place] = argv[:place][-1:]
            case 2:
                argv[place:place] = [pick(rng, flags)]
            case 3:
                argv[place:place] = [pick(rng, flags), pick(rng, JUNK)]
            case 4:
                argv[place : place + 1] = [word[: int(rng.integers(len(word) + 1))] for word in argv[place : place + 1]]
            case 5:
                argv[place : place + 2] = ["=".join(argv[place : place + 2])]
            case _:
                argv[place : place + 1] = [pick(rng, JUNK)]
    return argv


def damage_value(rng: np.random.Generator, value: Any) -> Any:
    """JSON with one entry of another kind, or missing, or with another name."""
    inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inside or rng.random() < 0.2:
        return pick(rng, _JSON)
    key, value = pick(rng, inside), value.copy()
    match rng.integers(6):
        case 0:
            value.pop(key)
        case 1 if isinstance(value, dict):
            value[pick(rng, JUNK)] = value.pop(key)
        case _:
            value[key] = damage_value(rng, value[key])
    return value


def damage_arrays(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One array of another kind, shape or name, with numbers that are none, or missing."""
    name = pick(rng, list(arrays))
    array, other = arrays[name], dict(arrays)
    match rng.integers(8):
        case 0:
            other.pop(name)
        case 1:
            other[pick(rng, ["x", "a/b", "🦉", "particles/9", "trace/t", "log_weights"])] = other.pop(name)
        case 2:
            shapes = [array[..., None], array[:-1] if array.ndim else array, array.reshape(-1)[:0], np.asarray(7)]
            other[name] = pick(rng, shapes)
        case 3:
            other[name] = np.array([_Intruder()], dtype=object)
        case _:
            numbers = [np.nan, -np.inf, 1e308, 10**18, 1j, "text", True, np.datetime64("2026-01-01"), np.longdouble(1)]
            other[name] = np.full(array.shape, pick(rng, numbers))
    return other


def damage_json_file(rng: np.random.Generator, path: Path) -> None:
    """A file with other bytes, or with another value in it."""
    content = path.read_bytes()
    match rng.integers(6):
        case 0 | 1:
            path.write_bytes(damage_bytes(rng, content))
        case 2:
            path.write_bytes(pick(rng, _NO_JSON))
        case _:
            path.write_text(json.dumps(damage_value(rng, json.loads(content))), encoding="utf-8")


def damage_archive_file(rng: np.random.Generator, path: Path) -> None:
    """An npz file with other bytes, with another array in it, or with one array that has no name."""
    content = path.read_bytes()
    match rng.integers(6):
        case 0 | 1:
            path.write_bytes(damage_bytes(rng, content))
        case 2:
            alone = io.BytesIO()
            np.save(alone, np.arange(3.0))
            path.write_bytes(alone.getvalue())
        case _:
            with np.load(io.BytesIO(content)) as archive:
                path.write_bytes(_archive(damage_arrays(rng, dict(archive))))


def damage_checkpoint(
    rng: np.random.Generator, path: Path, record: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """A checkpoint with other bytes, of another version, or with other contents and a checksum that fits them."""
    content = path.read_bytes()
    match rng.integers(6):
        case 0 | 1:
            path.write_bytes(damage_bytes(rng, content))
        case 2:
            version = pick(rng, [b"0", b"2", b"-1", b"x", b"", b"1 1", b"9" * 300])
            path.write_bytes(content.replace(b"pgps-checkpoint 1", b"pgps-checkpoint " + version, 1))
        case 3:
            _, _, archive = content.partition(b"\n")
            path.write_bytes(_sealed(damage_bytes(rng, archive)))
        case 4:
            path.write_bytes(_sealed(_archive(arrays | {"record": _text(damage_value(rng, record))})))
        case _:
            path.write_bytes(_sealed(_archive(damage_arrays(rng, arrays | {"record": _text(record)}))))


def _text(record: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(record).encode(), np.uint8)


def _archive(arrays: dict[str, Any]) -> bytes:
    """An npz archive, in which objects are pickled."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _sealed(archive: bytes) -> bytes:
    return f"pgps-checkpoint 1 {hashlib.sha256(archive).hexdigest()}\n".encode() + archive
