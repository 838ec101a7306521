"""What the command line's texts stand for: a function in a file, a law, a method, a folder.

Whatever cannot be had raises `MisuseError`, whose text is one line with the option, its value and the remedy.
"""

import argparse
import contextlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from pgps import methods, recipes, storage
from pgps.checkpoint import Checkpoint
from pgps.initial import AbstractLaw, Normal, Uniform

# SGLD is not among them: without minibatches it is Langevin dynamics, and with them there is `pgps bnn`.
METHODS: dict[str, Callable[..., methods.AbstractMethod]] = {
    "exact": recipes.exact,
    "paper": recipes.paper,
    "training-free": recipes.training_free,
    "smc": methods.TemperedSMC,
    "langevin": methods.Langevin,
    "annealed-langevin": methods.AnnealedLangevin,
    "mala": methods.MALA,
    "svgd": methods.SVGD,
    "pfg": methods.PFG,
}

# The methods' arguments that are options: flag, type, help. Defaults stay with the methods.
OPTIONS: dict[str, tuple[str, type, str]] = {
    "alpha": ("--alpha", float, "how far the path spreads the initial law, in [0, 1]"),
    "beta": ("--beta", float, "how far the path shrinks the target at first, in (0, 1]"),
    "conditional_ess": ("--conditional-ess", float, "share of the particles that each time step keeps effective"),
    "psi": ("--psi", float, "mean distance that particles move in one time step"),
    "max_dt": ("--max-dt", float, "largest time step"),
    "dt": ("--dt", float, "time step"),
    "width": ("--width", int, "hidden units of the field"),
    "learning_rate": ("--learning-rate", float, "Adam's learning rate"),
    "max_training_steps": ("--max-training-steps", int, "training steps per time step, at most"),
    "threshold": ("--threshold", float, "loss at which training stops"),
    "langevin_steps": ("--langevin-steps", int, "Langevin steps per adjustment"),
    "step_size": ("--step-size", float, "step size, in paper and training-free of the Langevin steps"),
    "num_steps": ("--steps", int, "steps from the initial law to the end"),
    "langevin_every": ("--langevin-every", float, "adjust only when t passes a multiple of this"),
    "final_langevin_steps": ("--final-langevin-steps", int, "further Langevin steps at t = 1"),
}

_FLAGS = {name: flag for name, (flag, _, _) in OPTIONS.items()}
# The parts of a method have names of their own for what the recipes hand to them.
_FLAGS_OF_PARTS = {
    "target": "--conditional-ess",
    "num_steps": "--langevin-steps",
    "final_steps": "--final-langevin-steps",
    "every": "--langevin-every",
    "max_steps": "--max-training-steps",
}

# Libraries whose models a file may hold; each is an extra of its own name.
_MODEL_EXTRAS = ("numpyro", "pymc", "blackjax")

_LAWS: dict[str, Callable[..., AbstractLaw]] = {"normal": Normal, "uniform": Uniform}


LARGEST = 2**31 - 1
"""The largest number of particles, or of coordinates: arrays have no room for more."""


class MisuseError(Exception):
    """A command that cannot be carried out; its text is one line for the user."""


@contextlib.contextmanager
def misuse(names: dict[str, str]) -> Iterator[None]:
    """Turn an error of the library, whose first word is an argument, into one about the option behind it."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, FileExistsError) as error:
        name, _, rest = first_line(error).partition(" ")
        raise MisuseError(f"{names.get(name, name)} {rest}") from error
    except jax.errors.JaxRuntimeError as error:
        lines = str(error).strip().splitlines()
        # A host function that failed comes with its whole traceback, which ends with what it said.
        reason = (lines[-1] if "Traceback" in lines[0] else lines[0]).rstrip(".")
        raise MisuseError(f"the run failed on the device ({reason}); if for memory, ask for less of it") from error


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn a failure to write into an error about `--out`."""
    try:
        yield
    except OSError as error:
        raise MisuseError(f"--out {out} cannot be written ({first_line(error)}); choose another folder") from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(text: str) -> str:
    """A text on one line, in which whatever a terminal would not print can be seen."""
    visible = (letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(text.split()))
    return "".join(visible)


def check_words(argv: Sequence[str]) -> None:
    """Refuse bytes of another encoding, which no file could hold, and `--option=--`, which argparse takes for []."""
    for word in argv:
        if word.startswith("-") and word.endswith("=--"):
            raise MisuseError(f"{word[:-3]} must have a value, got '--'; give it one")
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise MisuseError(f"arguments must be text in UTF-8, got {word!a:.80}; rename what it stands for")


def path(text: str) -> Path:
    """The name of a file or folder, whether it exists or not, that the system can deal with."""
    try:
        if not text:
            raise ValueError("it is empty")
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise argparse.ArgumentTypeError(f"must name a file or folder, got {text!r:.80} ({reason})") from None
    return Path(text)


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers between `low` and `high`."""

    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            value = int(text)
            if low <= value and (high is None or value <= high):
                return value
        expected = f"a whole number of at least {low}" + ("" if high is None else f" and at most {high}")
        raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}")

    return parse


def shape(text: str) -> tuple[int, ...]:
    """The shape of a particle, as in `2,3`."""
    try:
        sizes = tuple(whole(1)(size) for size in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers of at least 1 with commas between them, as in 2,3, got {text!r}"
        ) from None
    whole(1, LARGEST)(str(math.prod(sizes)))
    return sizes


def seeds(text: str) -> tuple[int, ...]:
    """Seeds, as in `0,1,2` or `0-9`."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        try:
            first = whole(0, 2**32 - 1)(low)
            last = whole(first, first + 9999)(high) if dash else first
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"must be whole numbers with commas between them, or ranges, as in 0,1,2 or 0-9, got {text!r}"
            ) from None
        found += range(first, last + 1)
    return tuple(found)


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in text.split(","))


def option_defaults(name: str) -> str:
    """An option's default in each method that has it, for the help text; methods with the same one share it."""
    holders: dict[Any, list[str]] = {}
    for method in METHODS:
        if name in (known := _arguments(method)):
            holders.setdefault(known[name].default, []).append(method)
    return "; ".join(f"{', '.join(those)}: {default}" for default, those in holders.items())


def _arguments(method: str) -> dict[str, inspect.Parameter]:
    """A method's arguments by the names of the options; the recipes call their step size that of the Langevin steps."""
    parameters = inspect.signature(METHODS[method]).parameters
    return {"step_size" if name == "langevin_step_size" else name: parameters[name] for name in parameters}


def make_method(method: str, given: dict[str, Any]) -> methods.AbstractMethod:
    """A method from the options that were given; the others keep their defaults."""
    allowed = _arguments(method)
    for name in given:
        if name not in allowed:
            others = " or ".join(other for other in METHODS if name in _arguments(other))
            raise MisuseError(
                f"{_FLAGS[name]} does not apply to --method {method}; leave it out, or use --method {others}"
            )
    numbers = [name for name in ("langevin_steps", "final_langevin_steps") if name in allowed]
    if numbers and not any(given.get(name, allowed[name].default) for name in numbers):
        for name in ("step_size", "langevin_every"):
            if name in given:
                raise MisuseError(f"{_FLAGS[name]} {given[name]:g} is of no use without steps; add --langevin-steps")
    names = _FLAGS if "num_steps" in allowed else _FLAGS | _FLAGS_OF_PARTS
    with misuse(names):
        return METHODS[method](**{allowed[name].name: value for name, value in given.items()})


def make_law(text: str, particle: PyTree) -> AbstractLaw:
    """An initial law, as in `normal:0,3` or `uniform:-1,1`: the same for every number of a particle like this one."""
    kind, _, numbers = text.partition(":")
    if text == "prior":
        raise MisuseError("--initial prior is for models, and a log-density has none; use normal:MEAN,SCALE")
    try:
        first, second = (float(number) for number in numbers.split(","))
        law = _LAWS[kind]
    except (KeyError, ValueError):
        raise MisuseError(f"--initial must be normal:MEAN,SCALE or uniform:LOW,HIGH, got {text!r}") from None
    with misuse({name: f"--initial {text}: {name}" for name in ("mean", "scale", "low", "high")}):
        if isinstance(particle, jax.ShapeDtypeStruct):
            return law(first, second, shape=particle.shape)
        return law(jax.tree.map(lambda leaf: jnp.full(leaf.shape, first), particle), second)


def make_checkpoint(file: Path | None, every: float | None, resume: bool) -> Checkpoint | None:
    """Where a run is kept, if it is; with `resume` the file has to be there."""
    if file is None:
        given = {"--checkpoint-every": every is not None, "--resume": resume}
        for flag in [flag for flag in given if given[flag]]:
            raise MisuseError(f"{flag} is of no use without a checkpoint; add --checkpoint FILE")
        return None
    if resume and not os.path.isfile(file):
        raise MisuseError(f"--resume needs a checkpoint to go on from, but {file} is none; leave it out to begin anew")
    with misuse({"every": "--checkpoint-every", "path": "--checkpoint"}):
        return Checkpoint(file) if every is None else Checkpoint(file, every)


def load_object(target: str) -> Any:
    """The function, or the model, that `FILE.py:function` names."""
    file, _, name = target.rpartition(":")
    if not file or not name:
        raise MisuseError(
            f"FILE.py:function must name a file and a function, got {target!r}; as in target.py:logdensity"
        )
    try:
        found = path(file)
    except argparse.ArgumentTypeError as error:
        raise MisuseError(f"FILE.py:function {error}; check the path") from None
    if not found.is_file():
        raise MisuseError(f"FILE.py:function must name a file that exists, but {file} is none; check the path")
    module = _import_file(found)
    if not hasattr(module, name):
        defined = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        remedy = f"it defines {', '.join(defined)}" if defined else "define it there"
        raise MisuseError(f"FILE.py:function must name a function of the file, but {file} has no {name!r}; {remedy}")
    return getattr(module, name)


def _import_file(path: Path) -> ModuleType:
    # The prefix keeps a file called jax.py from taking the place of the real one.
    spec = importlib.util.spec_from_file_location(f"pgps_target_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MisuseError(f"FILE.py:function must name a Python file, got {path}; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        remedy = f"run: pip install 'pgps[{missing}]'" if missing in _MODEL_EXTRAS else "fix the file"
        raise MisuseError(
            f"{path} cannot be imported ({type(error).__name__}: {first_line(error)}); {remedy}"
        ) from error
    finally:
        sys.path.pop(0)
    return module


def check_output(out: Path | None) -> None:
    """Raise unless a run could write its folder: `out`, or one below `runs` if it is None."""
    folder = Path("runs") / "new" if out is None else out
    try:
        storage.check_free(folder)
    except FileExistsError as error:
        raise MisuseError(f"--{error}") from None
    home = next(parent for parent in folder.absolute().parents if parent.exists())
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        raise MisuseError(f"--out must lie where folders can be made, but {home} is not such a place; choose another")


def next_free(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
