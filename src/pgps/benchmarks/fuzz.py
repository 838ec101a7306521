"""Call the command line with malformed arguments and files, thousands of times: `pgps bench fuzz`.

It must answer each with exit code 2 and one line that begins with `pgps: error:`, or find that it is valid after all;
never with a traceback, a change of any file, or silence for longer than the limit. Sampling is left out: where a valid
command would begin to, `ReachedError` ends it. Input i of a seed is made from the seed and i alone; to see it again:
`python -m pgps.benchmarks.fuzz SEED I FOLDER`.
"""

import collections
import contextlib
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import numpy as np

from pgps.benchmarks import fuzz_inputs
from pgps.benchmarks.fuzz_watch import contents, limited, restore, silenced, watched
from pgps.benchmarks.timing import environment, write
from pgps.result import PGPSWarning

LONGEST = 60.0
"""Seconds after which a command hangs."""

# Whatever takes long begins with one of these; a command that gets there was valid.
_SENTINELS = (
    "pgps.run.progress_bar",
    "jax.distributed.initialize",
    "pgps.experiments.runner.run_cell",
    "pgps.experiments.worker.start_workers",
    "pgps.benchmarks.baseline_step.run",
    "pgps.benchmarks.bnn_step.run",
    "pgps.benchmarks.calibration.run",
    "pgps.benchmarks.evidence.run",
    "pgps.benchmarks.fuzz.run",
    "pgps.benchmarks.resume.run",
    "pgps.benchmarks.scaling.run",
    "pgps.benchmarks.training_step.run",
)
# So many inputs in a hundred are not damaged, and must be found valid.
_PERCENT_VALID = 2


class Preset(NamedTuple):
    """How many inputs there are."""

    num_inputs: int


PRESETS = {"full": Preset(10_000), "smoke": Preset(200)}


class ReachedError(BaseException):
    """A command has come to where it would sample; nothing in the library may catch it."""


class Outcome(NamedTuple):
    """What a command made of an input.

    Attributes:
        kind: Which kind of input it was.
        argv: The arguments.
        end: `exit 2`, `exit 0`, `valid` if it would have begun to sample, or what it raised.
        seconds: How long it took.
        faults: What is wrong with that; nothing, if all is well.
    """

    kind: str
    argv: list[str]
    end: str
    seconds: float
    faults: list[str]


def run(
    out: Path, quiet: bool, preset: Preset = PRESETS["full"], inputs: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Try all inputs, and write `result.json`."""
    num_inputs, start = inputs or preset.num_inputs, time.perf_counter()
    kinds: dict[str, collections.Counter[str]] = {}
    failures, slowest = [], Outcome("", [], "", 0.0, [])
    with tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch) / "valid")
        for index in range(num_inputs):
            outcome = attempt(seed, index, Path(scratch))
            kinds.setdefault(outcome.kind, collections.Counter()).update(["inputs", outcome.end])
            slowest = max(slowest, outcome, key=lambda one: one.seconds)
            if outcome.faults:
                failures.append({"index": index, **outcome._asdict()})
            if not quiet and (outcome.faults or index % 500 == 499):
                told = f": {outcome.faults[0].splitlines()[-1]}" if outcome.faults else ""
                print(f"{index + 1} of {num_inputs}, {len(failures)} failures{told}", file=sys.stderr, flush=True)
    record = {
        "command": f"pgps bench fuzz --inputs {num_inputs} --seed {seed}",
        "inputs": num_inputs,
        "seed": seed,
        "kinds": {name: dict(sorted(count.items())) for name, count in sorted(kinds.items())},
        "failures": failures,
        "slowest": slowest._asdict(),
        "limit_seconds": LONGEST,
        "seconds": time.perf_counter() - start,
        **environment(),
    }
    write(out, record)
    return record


def format_table(record: dict[str, Any]) -> str:
    """One line per kind, and one per failure."""
    ends = ("inputs", "exit 2", "exit 0", "valid")
    lines = [f"{'':<12}" + "".join(f"{name:>9}" for name in ends)]
    for kind, counts in record["kinds"].items():
        lines.append(f"{kind:<12}" + "".join(f"{counts.get(name, 0):>9,}" for name in ends))
    lines.append(f"{len(record['failures'])} failures; the slowest took {record['slowest']['seconds']:.1f} s")
    for failure in record["failures"]:
        lines.append(f"{failure['index']} ({failure['kind']}): {failure['faults'][0].splitlines()[-1]}")
    return "\n".join(lines)


def prepare(folder: Path) -> None:
    """Make a folder with a valid file of every kind."""
    from pgps.cli import main

    folder.mkdir(parents=True)
    with contextlib.chdir(folder), silenced(), warnings.catch_warnings(action="ignore", category=PGPSWarning):
        fuzz_inputs.prepare(main)
        with _sentinels(), contextlib.suppress(ReachedError):
            main(fuzz_inputs.REPRODUCE)
        fuzz_inputs.prepare_cells()
        # What the first report needs once, such as the list of fonts, is not the business of later ones.
        main(["report", "run", "--quiet", "--out", "page.html"])
        Path("page.html").unlink()


def attempt(seed: int, index: int, scratch: Path) -> Outcome:
    """Call the command line with one input, in a copy of the folder `valid` of `scratch`, and look at what it did."""
    from pgps.cli import main

    rng = np.random.default_rng([seed, index])
    folder = scratch / "work"
    restore(scratch / "valid", folder)
    names, shares = list(fuzz_inputs.KINDS), [share for share, _ in fuzz_inputs.KINDS.values()]
    kind, is_valid = str(rng.choice(names, p=shares)), bool(rng.integers(100) < _PERCENT_VALID)
    with contextlib.chdir(folder):
        argv = fuzz_inputs.COMMANDS[int(rng.integers(len(fuzz_inputs.COMMANDS)))]
        if not is_valid:
            argv = fuzz_inputs.KINDS[kind][1](rng)
        before, start = contents(folder), time.perf_counter()
        with watched(folder) as outside, silenced() as (stdout, stderr), _sentinels(), limited(LONGEST):
            end, error = _end(main, list(argv))
        seconds, after = time.perf_counter() - start, contents(folder)
    faults = [] if error is None else [error]
    faults += [f"touched {path}, which is outside its folder" for path in outside]
    faults += _wrong_words(end, stdout(), stderr()) if error is None else []
    page = stdout().splitlines()[-1:] if argv[:1] == ["report"] and end == "exit 0" else []
    faults += [f"changed {name}" for name in sorted(_changed(before, after, end)) if [name] != page]
    if is_valid and end == "exit 2":
        faults.append(f"refused a valid command: {stderr()}")
    return Outcome("valid" if is_valid else kind, list(argv), end, seconds, faults)


def _end(main: Callable[[Sequence[str]], int], argv: list[str]) -> tuple[str, str | None]:
    """How a command ended, and the traceback if it raised."""
    try:
        return f"exit {main(argv)}", None
    except ReachedError:
        return "valid", None
    except SystemExit as error:
        return f"exit {error.code}", None
    except BaseException as error:
        # Whatever comes out of `main` is a fault to be told.
        return type(error).__name__, traceback.format_exc()


def _wrong_words(end: str, stdout: str, stderr: str) -> list[str]:
    """What is wrong with what a command printed."""
    if end not in ("exit 0", "exit 2", "valid"):
        return [f"ended with {end}"]
    if end != "exit 2":
        return []
    faults = [] if stdout == "" else [f"printed {stdout!r:.200} besides its error"]
    one_line = stderr.startswith("pgps: error: ") and stderr.endswith("\n") and len(stderr.splitlines()) == 1
    return faults if one_line and stderr[:-1].isprintable() else [*faults, f"printed {stderr!r:.500}, not one line"]


def _changed(before: dict[str, str], after: dict[str, str], end: str) -> set[str]:
    """Files that are gone or altered and, if the command was refused, those that are new."""
    changed = {name for name in before if after.get(name) != before[name]}
    return changed | (after.keys() - before.keys() if end == "exit 2" else set())


@contextlib.contextmanager
def _sentinels() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in _SENTINELS:
            stack.enter_context(mock.patch(name, _reach))
        yield


def _reach(*_: Any, **__: Any) -> NoReturn:
    raise ReachedError


def main(argv: Sequence[str]) -> None:
    """Try one input, and print all about it; its files stay in the folder."""
    seed, index, folder = argv
    prepare(Path(folder) / "valid")
    print("\n".join(map(str, attempt(int(seed), int(index), Path(folder)))))


if __name__ == "__main__":
    main(sys.argv[1:])
