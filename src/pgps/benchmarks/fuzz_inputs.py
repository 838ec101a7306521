"""Malformed inputs of the command line: arguments, options in TOML, data, checkpoints, results, folders and models.

Each kind is a function of a random generator. In the current folder, which holds a valid file of every kind
(`prepare`), it damages one, or the arguments, and returns the arguments to call the command with.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from pgps import storage
from pgps.benchmarks.fuzz_damage import (
    JUNK,
    TOML,
    damage_archive_file,
    damage_bytes,
    damage_checkpoint,
    damage_json_file,
    damage_words,
    pick,
)
from pgps.initial import Normal
from pgps.methods import TemperedSMC
from pgps.result import load
from pgps.sample import sample

_MODEL = """\
from math import log
import jax.numpy as jnp

CONSTANT = 3

def logdensity(x):
    return -0.5 * jnp.sum(x**2)

def line(x, y, sd):
    return -0.5 * jnp.sum(((y - x[0]) / sd) ** 2)

def anything(x, **data):
    return -0.5 * jnp.sum(x**2)

def nothing():
    return 3

def fails(x):
    raise KeyError("of the user")
"""
_OPTIONS = """\
target = "model.py:logdensity"
dim = 2
particles = 8
method = "training-free"
dt = 0.25
langevin-steps = 1
initial = "normal:0,3"
frames = 0
quiet = true
"""
_SETTINGS = ["--dim", "2", "--particles", "8", "--frames", "0", "--quiet"]
_SETTINGS += ["--method", "training-free", "--dt", "0.25", "--langevin-steps", "1"]
_SAMPLE = ["sample", "model.py:logdensity", *_SETTINGS]
_RESUME = [*_SAMPLE, "--checkpoint", "kept"]
REPRODUCE = ["reproduce", "fig4", "--preset", "smoke", "--quiet", "--out", "experiment"]

# Each is valid as it stands.
COMMANDS = [
    ["--version"],
    ["demo", "--seed", "3", "--quiet"],
    ["sample", "--help"],
    [*_SAMPLE, "--out", "new"],
    ["sample", "model.py:logdensity", "--shape", "2,3", "--method", "paper", "--psi", "0.05", "--width", "8"],
    ["sample", "model.py:line", "--dim", "1", "--data", "rows.csv", "--initial", "uniform:-1,1", "--max-seconds", "9"],
    ["sample", "model.py:anything", "--dim", "1", "--data", "rows.npz", "--alpha", "0.5", "--beta", "0.5"],
    ["sample", "--config", "options.toml", "--seed", "1"],
    [*_RESUME, "--resume", "--checkpoint-every", "5", "--max-evaluations", "1000"],
    REPRODUCE,
    ["reproduce", "fig1", "--seeds", "0-3", "--cells", "*", "--jobs", "2", "--out", "new"],
    ["reproduce", "--list"],
    ["bnn", "digits", "--method", "svgd", "--particles", "20", "--hidden", "5", "--rate", "0.1", "--out", "new"],
    ["bench", "training-step", "--preset", "smoke", "--repeats", "2", "--out", "new"],
    ["bench", "evidence", "--targets", "funnel", "--samplers", "exact,zero", "--seeds", "0,1", "--out", "new"],
    ["bench", "resume", "--quiet"],
    ["report", "run", "--quiet"],
    ["report", "run", "--out", "page.html"],
    ["report", "run", "--compare", "other", "--out", "page.html"],
]
_FLAGS = sorted({token for command in COMMANDS for token in command if token.startswith("--")})

Generator = np.random.Generator


def prepare(main: Callable[[Sequence[str]], int]) -> None:
    """Write a valid file of every kind into the current folder, with a command line that samples."""
    Path("model.py").write_text(_MODEL, encoding="utf-8")
    Path("options.toml").write_text(_OPTIONS, encoding="utf-8")
    Path("rows.csv").write_text("y,sd\n1,0.5\n2.5,1\n-3,2\n", encoding="utf-8")
    Path("rows.json").write_text('{"y": [1, 2.5, -3], "sd": [0.5, 1, 2]}\n', encoding="utf-8")
    np.savez("rows.npz", y=np.array([1, 2.5, -3]), sd=np.array([0.5, 1, 2]))
    # Two calls a particle and step: it stops in the middle.
    main([*_RESUME, "--max-evaluations", "32", "--frames", "3", "--out", "cut"])
    Path("cut", "frames.npz").rename("frames.npz")
    initial, method = Normal(0.0, 2.0, shape=(2,)), TemperedSMC()
    result = sample(
        lambda x: -0.5 * (x @ x), initial, key=jax.random.key(0), num_particles=24, method=method, progress=False
    )
    result.save("run")
    dataclasses.replace(load("run"), log_evidence=None, log_evidence_error=None, ess=None, families=None).save("other")


def prepare_cells() -> None:
    """Complete some cells of the experiment that `REPRODUCE` has begun in the current folder."""
    for name in ("langevin", "svgd"):
        cell = Path("experiment", "cells", name)
        cell.with_suffix(".json").write_text('{"seconds": 1.5, "rows": [{"seed": 0, "e": 0.5}]}', encoding="utf-8")
        np.savez(cell.with_suffix(".npz"), errors=np.arange(3.0))


def arguments(rng: Generator) -> list[str]:
    """A command with some words replaced, left out, repeated, cut off or made up."""
    return damage_words(rng, pick(rng, COMMANDS), _FLAGS)


def config(rng: Generator) -> list[str]:
    """A file of options with another value, another name, or other bytes."""
    lines: list[str] = list(_OPTIONS.splitlines())
    place = int(rng.integers(len(lines)))
    name, _, _ = lines[place].partition(" = ")
    content = None
    match rng.integers(6):
        case 0:
            content = damage_bytes(rng, _OPTIONS.encode())
        case 1:
            lines[place] = f"{pick(rng, ['sed', 'config', 'help', 'a.b', '[table]', '[[x]]', 'out', 'data'])} = 1"
        case 2:
            lines.append(f"{pick(rng, _FLAGS)[2:]} = {pick(rng, TOML)}")
        case 3:
            lines[place] = f"{name} = {json.dumps(pick(rng, JUNK))}"
        case _:
            lines[place] = f"{name} = {pick(rng, TOML)}"
    Path("options.toml").write_bytes("\n".join(lines).encode() if content is None else content)
    beside = pick(rng, [[], [], ["--seed", "1"], ["--dim", "3"], ["--out", "new"]])
    return ["sample", "--config", "options.toml", *beside]


def csv(rng: Generator) -> list[str]:
    """A table with cells that are no numbers, or with other bytes."""
    path = Path("rows.csv")
    if rng.random() < 0.5:
        path.write_bytes(damage_bytes(rng, path.read_bytes()))
    else:
        rows = [row.split(",") for row in path.read_text(encoding="utf-8").splitlines()]
        row = pick(rng, rows)
        row[int(rng.integers(len(row)))] = pick(rng, JUNK)
        path.write_bytes("\n".join(",".join(row) for row in rows).encode("utf-8", "surrogateescape"))
    return _with_data(rng, "rows.csv")


def json_data(rng: Generator) -> list[str]:
    """An object with entries of another kind, or with other bytes."""
    damage_json_file(rng, Path("rows.json"))
    return _with_data(rng, "rows.json")


def npz(rng: Generator) -> list[str]:
    """An archive with arrays of another kind, or with other bytes."""
    damage_archive_file(rng, Path("rows.npz"))
    return _with_data(rng, "rows.npz")


def _with_data(rng: Generator, name: str) -> list[str]:
    return ["sample", f"model.py:{pick(rng, ['line', 'line', 'anything'])}", *_SETTINGS, "--data", name]


def checkpoint(rng: Generator) -> list[str]:
    """A checkpoint that was altered, also with a checksum that fits, or that is of another run."""
    path = Path("kept")
    damage_checkpoint(rng, path, *storage.read_file(path))
    return [*_RESUME, *pick(rng, [[], ["--resume"], ["--seed", "1"], ["--max-seconds", "5"]])]


def result(rng: Generator) -> list[str]:
    """A run's folder in which one file is altered or missing, or a page lies that is not ours."""
    run = Path(pick(rng, ["run", "other"]))
    name = pick(rng, ["result.json", "particles.npz", "frames.npz", "report.html"])
    Path("frames.npz").rename(run / "frames.npz")
    if name == "report.html":
        (run / name).write_bytes(pick(rng, [b"mine", b"", b'<meta content="pgps comparison">', b"\xff", b"x" * 9999]))
    elif rng.random() < 0.1:
        (run / name).unlink()
    else:
        damage = damage_json_file if name == "result.json" else damage_archive_file
        damage(rng, run / name)
    return pick(rng, [["report", str(run)], ["report", str(run)], ["report", "run", "--compare", "other"]])


def experiment(rng: Generator) -> list[str]:
    """The folder of an experiment that was begun, in which one file is altered."""
    path = Path("experiment", pick(rng, ["experiment.json", "cells/langevin.json", "cells/svgd.npz"]))
    damage = damage_archive_file if path.suffix == ".npz" else damage_json_file
    damage(rng, path)
    return REPRODUCE


def model(rng: Generator) -> list[str]:
    """A Python file that is cut off, or no Python, or lacks the function. It is run, so that no byte is changed."""
    content = _MODEL.encode()
    junk = [b"", b"\xff\xfe", b"\0", b"import nowhere", b"raise SystemExit(3)", b"1/0", b"(" * 500]
    Path("model.py").write_bytes(pick(rng, [content, content[: int(rng.integers(len(content)))], pick(rng, junk)]))
    name = pick(rng, ["logdensity", "line", "nothing", "CONSTANT", "log", "fails", "anything", "jnp", "__name__"])
    return ["sample", f"model.py:{name}", *pick(rng, [["--dim", "2"], [], ["--shape", "2,2"]])]


KINDS: dict[str, tuple[float, Callable[[Generator], list[str]]]] = {
    "arguments": (0.38, arguments),
    "config": (0.16, config),
    "csv": (0.12, csv),
    "json": (0.11, json_data),
    "npz": (0.12, npz),
    "checkpoint": (0.04, checkpoint),
    "result": (0.03, result),
    "experiment": (0.01, experiment),
    "model": (0.03, model),
}
"""What share of the inputs each kind has, and how one is made."""
