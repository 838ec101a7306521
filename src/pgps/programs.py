"""Compiled programs: room for them in a process, and a folder where commands keep them for the next one.

XLA's programs for the CPU hold memory maps, one of this library some 3,000, and JAX keeps every program. Linux allows a
process 65,530 maps (`vm.max_map_count`): after some twenty targets the compiler would end it by a segmentation fault.
So before a run all of JAX's programs are dropped if the process holds more than half of that. Those that are still in
use are compiled again when they are called next.

To compile a run takes longer than the run, for most targets, and a second command with the same target needs the same
programs. The command line keeps them in the user's cache; a library leaves that choice to its caller, who has JAX's
own `JAX_COMPILATION_CACHE_DIR`.

Options of the compiler speed up the steps of a run on a CPU. Vectors have 512 bits, where a processor has them: XLA
takes 256 unless told otherwise, and a training step then takes a quarter longer. Sums are XLA's own: YNNPACK, a library
that it hands some of them to, is slow where many are of a few numbers each, as those over a particle's clusters.
"""

import hashlib
import platform
import time
from functools import cache
from pathlib import Path

import jax

from pgps.storage import cache_folder

THREADS_VARIABLE = "NPROC"
"""Tells XLA how many threads it has on a CPU; read once, when JAX is first used."""

CPU_OPTIONS = {"xla_cpu_prefer_vector_width": 512, "xla_cpu_experimental_ynn_fusion_type": ""}
"""For the program of a run's steps; other processors do not know them."""

_MAPS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")
_LARGEST_SHARE = 0.5
# To count maps takes milliseconds, and programs take longer than this to compile.
_SECONDS_BETWEEN = 5.0
# Bytes on the disk, some three hundred targets.
_LARGEST_FOLDER = 2**29
# To read a program takes some ten milliseconds.
_SHORTEST_COMPILATION = 0.1

_last_count = -_SECONDS_BETWEEN
_kept = 0


@cache
def compiler_options() -> dict[str, int | str] | None:
    """The options that this machine's compiler has; with one that it has not, no program would be compiled."""
    if jax.default_backend() != "cpu":
        return None
    return {name: value for name, value in CPU_OPTIONS.items() if _is_known(name, value)}


def _is_known(name: str, value: int | str) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def make_room() -> None:
    """Drop all compiled programs if they hold too many memory maps."""
    global _last_count, _kept
    now = time.monotonic()
    if now - _last_count < _SECONDS_BETWEEN:
        return
    _last_count = now
    try:
        limit = int(_LIMIT.read_text())
        # Maps that are not those of programs stay, and should not have programs dropped again and again.
        if _num_maps() > max(_LARGEST_SHARE * limit, 1.5 * _kept):
            jax.clear_caches()
            _kept = _num_maps()
    except (OSError, ValueError):
        # Other systems have no such limit, or do not tell.
        return


def _num_maps() -> int:
    return _MAPS.read_bytes().count(b"\n")


def keep_for_later() -> None:
    """Have JAX keep programs in the user's cache, and read them from there, unless it has a folder already."""
    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    folder = cache_folder() / "programs" / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _forget_oldest(folder, _LARGEST_FOLDER)
    except OSError:
        # Nowhere to keep them: each process compiles.
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_COMPILATION)


def _forget_oldest(folder: Path, largest: int) -> None:
    """Remove the oldest half of the folder, by size, if all of it is too large."""
    files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.iterdir())
    total = sum(size for _, size, _ in files)
    if total <= largest:
        return
    for _, size, path in files:
        path.unlink(missing_ok=True)
        total -= size
        if total <= largest / 2:
            return


def _processor() -> str:
    """A name for what programs are compiled for: a home may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    except OSError:
        features = [platform.processor()]
    return hashlib.sha256("\n".join([platform.machine(), *features]).encode()).hexdigest()[:12]
