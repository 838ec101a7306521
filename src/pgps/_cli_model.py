"""What `pgps sample` samples: a plain log-density, or a model of NumPyro or PyMC, with data from a file."""

import contextlib
import csv
import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from pgps import _cli_inputs as inputs
from pgps import storage
from pgps.adapters.base import AbstractModel, constrained, starting_law
from pgps.initial import AbstractLaw
from pgps.result import Result
from pgps.run import Snapshot


class Target(NamedTuple):
    """A log-density, where its particles start, and the way to a model's own variables, if it is one."""

    logdensity_fn: Callable
    initial: AbstractLaw
    constrain: Callable[[PyTree], PyTree] | None = None

    def constrained(self, result: Result) -> Result:
        """The result in the model's own variables."""
        return result if self.constrain is None else constrained(result, self.constrain)

    def watched(self, callback: Callable[[Snapshot], None] | None) -> Callable[[Snapshot], None] | None:
        """The same callback, which sees the model's own variables."""
        constrain = self.constrain
        if callback is None or constrain is None:
            return callback
        return lambda snapshot: callback(snapshot._replace(particles=constrain(snapshot.particles)))


def load_target(name: str, shape: tuple[int, ...] | None, initial: str | None, data: Path | None, key: Array) -> Target:
    """What `FILE.py:name` is: with a shape a log-density of such particles, and without one a model.

    Args:
        name: As in `model.py:eight_schools`.
        shape: The shape of a particle.
        initial: The law to start from: `normal:0,3` or a model's `prior`; None is N(0, 1), or what suits the model.
        data: A file whose columns or entries are passed by name.
        key: A random key, for a model that has no prior to start from.
    """
    found, rows = inputs.load_object(name), {} if data is None else load_data(data)
    if shape is not None:
        if not callable(found):
            raise inputs.MisuseError(
                f"FILE.py:function must name a function, but {name} is {found!r:.60}; name another, or leave out --dim "
                "and --shape if it is a model"
            )
        _check_names(name, found, rows, data, skip=1)
        law = inputs.make_law(initial or "normal:0,1", jax.ShapeDtypeStruct(shape, float))
        return Target(partial(found, **rows) if rows else found, law)
    with inputs.misuse({"model": f"{name}: model", "initial": "--initial"}), _failures_of(name):
        model = _model(name, found, rows, data)
        law = _law(model, initial, key)
    return Target(model, law, model.constrain)


def _law(model: AbstractModel, initial: str | None, key: Array) -> AbstractLaw:
    if initial is None:
        return starting_law(model, key)
    return model.prior() if initial == "prior" else inputs.make_law(initial, model.template)


@contextlib.contextmanager
def _failures_of(name: str) -> Iterator[None]:
    """Turn whatever a user's model raises into one line; what the library says of it is passed on."""
    try:
        yield
    except (inputs.MisuseError, TypeError, ValueError, OverflowError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {inputs.first_line(error)}"
        remedy = "fix it, or add --dim or --shape if it is a log-density"
        raise inputs.MisuseError(f"{name} fails as a model ({reason}); {remedy}") from error


def _model(name: str, found: Any, rows: dict[str, np.ndarray], data: Path | None) -> AbstractModel:
    """An adapter for a NumPyro model, a PyMC model, or a function that makes a PyMC model from the data."""
    from pgps.adapters.numpyro import NumPyroModel
    from pgps.adapters.pymc import PyMCModel

    try:
        if not callable(found):
            if rows:
                raise inputs.MisuseError(f"--data {data} is of no use to {name}, which is not a function; leave it out")
            return PyMCModel(found)
        _check_names(name, found, rows, data, skip=0)
        return PyMCModel(found(**rows)) if _makes_pymc_model(name, found) else NumPyroModel(found, **rows)
    except ModuleNotFoundError as error:
        raise inputs.MisuseError(
            f"{name} is taken for a model, since there is no --dim and no --shape: {error}"
        ) from None


def _signature(name: str, function: Callable) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise inputs.MisuseError(
            f"{name} must be a Python function, got {function!r:.60} ({error}); wrap it in one"
        ) from None


def _makes_pymc_model(name: str, function: Callable) -> bool:
    """Whether a function is declared to return a PyMC model, which is all that is known before it is called."""
    declared = str(_signature(name, function).return_annotation)
    return "pm.Model" in declared or "pymc" in declared


def _check_names(name: str, function: Callable, rows: dict[str, np.ndarray], data: Path | None, skip: int) -> None:
    """Raise unless the function takes what the file holds, and the file holds what it needs."""
    parameters = list(_signature(name, function).parameters.values())[skip:]
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return
    takes = [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_POSITIONAL]
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind != parameter.VAR_POSITIONAL
    ]
    where = f"--data {data}"
    if missing := [column for column in needed if column not in rows]:
        remedy = f"{where} has {', '.join(rows)}; add the column"
        if data is None:
            remedy = "there is no --data FILE; if it is a log-density of one particle, add --dim or --shape"
        raise inputs.MisuseError(f"{name} needs {', '.join(missing)}, but {remedy}")
    if extra := [column for column in rows if column not in takes]:
        raise inputs.MisuseError(
            f"{where} has {', '.join(extra)}, but {name} takes {', '.join(takes) or 'no data'}; remove or rename it"
        )


def load_data(path: Path) -> dict[str, np.ndarray]:
    """Named arrays from a CSV file with a header, an NPZ file or a JSON object."""
    readers = {".csv": _read_csv, ".npz": _read_npz, ".json": _read_json}
    if path.suffix not in readers:
        raise inputs.MisuseError(f"--data must end in {', '.join(readers)}, got {path}; convert it to one of these")
    if not path.is_file():
        raise inputs.MisuseError(f"--data must name a file that exists, but {path} is none; check the path")

    def refusal(reason: str) -> inputs.MisuseError:
        return inputs.MisuseError(f"--data {path} cannot be read ({reason}); check the file")

    try:
        with storage.refusing(refusal):
            arrays = readers[path.suffix](path)
    except OSError as error:
        raise refusal(inputs.first_line(error)) from error
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.number) and array.dtype != bool:
            raise inputs.MisuseError(f"--data {path}: {name!r} must be numbers, got {array.dtype}; encode it")
        if not np.all(np.isfinite(array)):
            raise inputs.MisuseError(f"--data {path}: {name!r} must be finite, got nan or inf; remove such rows")
    return arrays


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        head, *rows = [row for row in csv.reader(file) if row] or [[]]
    if not rows:
        raise ValueError("it has a header and no rows" if head else "it is empty")
    if len(set(head)) < len(head):
        raise ValueError("two columns have one name")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(head):
            raise ValueError(f"row {number} has {len(row)} cells, the header {len(head)}")
    columns = zip(*rows, strict=True)
    return {name.strip(): _numbers(name, cells) for name, cells in zip(head, columns, strict=True)}


def _numbers(name: str, cells: tuple[str, ...]) -> np.ndarray:
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in cells])
        except ValueError:
            continue
    raise ValueError(f"column {name!r} holds cells that are not numbers")


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        return storage.read_archive(file)


def _read_json(path: Path) -> dict[str, np.ndarray]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it must be an object of names and arrays")
    return {name: np.asarray(value) for name, value in found.items()}
