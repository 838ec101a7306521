"""Room for compiled programs.

XLA's programs for the CPU hold memory maps, one of this library some 3,000, and JAX keeps every program. Linux allows a
process 65,530 maps (`vm.max_map_count`): after some twenty targets the compiler would end it by a segmentation fault.
So before a run all of JAX's programs are dropped if the process holds more than half of that. Those that are still in
use are compiled again when they are called next.
"""

import time
from pathlib import Path

import jax

_MAPS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")
_LARGEST_SHARE = 0.5
# To count maps takes milliseconds, and programs take longer than this to compile.
_SECONDS_BETWEEN = 5.0

_last_count = -_SECONDS_BETWEEN
_kept = 0


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
