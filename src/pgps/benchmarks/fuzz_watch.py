"""What a command does while it is tried: the files that it changes, what it prints, and whether it comes to an end."""

import contextlib
import hashlib
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")


class HungError(BaseException):
    """A command has taken too long."""


def restore(valid: Path, folder: Path) -> None:
    """Make a folder the same as another; copying what differs alone is several times faster."""
    folder.mkdir(exist_ok=True)
    wanted = {path.relative_to(valid): path for path in valid.rglob("*")}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.relative_to(folder) not in wanted:
            path.rmdir() if path.is_dir() else path.unlink()
    for name, path in sorted(wanted.items()):
        copy = folder / name
        if path.is_dir():
            copy.mkdir(exist_ok=True)
        elif not copy.exists() or copy.stat().st_mtime_ns != path.stat().st_mtime_ns:
            shutil.copy2(path, copy)


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file of a folder, by name; folders have none."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
    }


@contextlib.contextmanager
def silenced() -> Iterator[tuple[Callable[[], str], Callable[[], str]]]:
    """Take what is printed, by the rules of a terminal in UTF-8; gives the ways to read it."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", rule) for rule in ("strict", "backslashreplace")]

    def reader(stream: io.TextIOWrapper) -> Callable[[], str]:
        def read() -> str:
            stream.flush()
            stream.seek(0)
            return stream.read()

        return read

    stdout, stderr = streams
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        yield reader(stdout), reader(stderr)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `HungError` after so many seconds."""

    def ring(*_: Any) -> None:
        raise HungError(f"no answer after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_watchers: list[Callable[[str], None]] = []
"""At most one: told of each path that Python code is about to change."""
_hooked: list[Callable] = []
"""The audit hook, once it is there: it cannot be taken away again."""


def _audit(event: str, arguments: tuple) -> None:
    if not _watchers or not (event == "open" or event in _CHANGES):
        return
    is_write = event in _CHANGES or bool((arguments[2] or 0) & _WRITES)
    for path in arguments[: 2 if event == "os.rename" else 1] if is_write else ():
        if isinstance(path, str | bytes | os.PathLike):
            _watchers[0](os.path.abspath(os.fsdecode(path)))


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Watch for changes outside a folder; what packages keep in the user's caches is their own business."""
    if _audit not in _hooked:
        sys.addaudithook(_audit)
        _hooked.append(_audit)
    caches = (
        os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        jax.config.jax_compilation_cache_dir,  # pyright: ignore[reportAttributeAccessIssue]
    )
    roots = tuple(os.path.join(root, "") for root in (str(folder), *caches) if root)
    outside: list[str] = []
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _watchers.append(lambda path: None if f"{path}/".startswith((*roots, "/dev/null/")) else outside.append(path))
    try:
        yield outside
    finally:
        _watchers.clear()
        sys.dont_write_bytecode = bytecode
