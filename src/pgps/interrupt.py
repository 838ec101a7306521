"""Ctrl-C that waits for what is under way."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Take note of a first Ctrl-C instead of raising it; a second one raises `KeyboardInterrupt` as usual.

    Yields a function that tells whether there was one. Threads other than the main one get no signals, and a handler
    that somebody else has set is left alone.
    """
    asked = False

    def note(number: int, frame: Any) -> None:
        del number, frame
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
