"""A live progress bar: t, step, loss and speed. It lives on the host, between compiled chunks, and costs nothing there.

It shows on a terminal only, and needs the extra `progress` (rich).
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator

Report = Callable[[float, int, float | None], None]
"""Called with (t, step, loss) after each chunk."""


def _say_nothing(t: float, step: int, loss: float | None) -> None:
    pass


@contextlib.contextmanager
def progress_bar(show: bool | None) -> Iterator[Report]:
    """Yield a function that updates the bar.

    Args:
        show: True, False, or None: on a terminal if rich is installed.
    """
    if show is None:
        show = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
    if not show:
        yield _say_nothing
        return
    try:
        from rich import progress
        from rich.console import Console
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "progress=True needs rich, which is not installed; run: pip install 'pgps[progress]'"
        ) from None
    columns = (
        progress.TextColumn("t = {task.completed:.3f}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[text]}"),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=1.0, text="compiling")

        def update(t: float, step: int, loss: float | None) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            loss_text = "" if loss is None else f"loss {loss:.3g}  "
            speed = f"{step / elapsed:.1f} steps/s" if elapsed > 0 else ""
            bar.update(task, completed=t, text=f"step {step}  {loss_text}{speed}")

        yield update
