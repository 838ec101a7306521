"""What a run computes, as data: on one machine, runs with equal fingerprints have the same bits.

Functions are compared by their traced programs, so that an edited log-density is noticed and a renamed one is not. What
a host callback does is hidden from a trace, and so from its fingerprint.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import Array, PyTree

from pgps._version import __version__
from pgps.density import Problem
from pgps.methods.base import AbstractMethod
from pgps.settings import describe, with_arrays

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(
    method: AbstractMethod,
    problem: Problem,
    key: Array,
    num_particles: int,
    observe: Callable[[PyTree], PyTree] | None,
) -> dict[str, Any]:
    """All that decides a run's bits, in the order in which a difference is best explained; JSON can hold it."""
    structure = problem.structure
    running = with_arrays(method, structure.dtype)
    states = eqx.filter_eval_shape(lambda: running.init(key, problem, num_particles))
    particles = jax.ShapeDtypeStruct((num_particles, structure.dim), structure.dtype)
    unravel = jax.vmap(structure.unravel)
    facts = {
        "versions": {"pgps": __version__, "jax": jax.__version__},
        "dtype": str(structure.dtype),
        "jax_enable_x64": jnp.result_type(float) == jnp.float64,
        "dim": structure.dim,
        "num_particles": num_particles,
        "devices": problem.spread.num_devices,
        "batch_size": problem.spread.batch_size,
        "key": {"kind": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()},
        "initial": describe(problem.initial),
        "method": describe(method),
        "programs": {
            "initial": _program(lambda: (problem.initial.sample(key), problem.log_initial(problem.center))),
            "logdensity_fn": _program(jax.value_and_grad(problem.log_target), problem.center),
            "observe": None if observe is None else _program(lambda x: observe(unravel(x)), particles),
            "method": _program(lambda state: running.step(key, state, problem), states),
        },
    }
    return json.loads(_ADDRESS.sub("", json.dumps(facts, allow_nan=False)))


def difference(there: Any, here: Any, name: str = "") -> str | None:
    """Where two fingerprints differ first, in words; None if they do not."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in here | there:
            within = key if name in ("", "programs") else f"{name}.{key}"
            own = _programs_differ if name == "programs" else difference
            if found := own(there.get(key), here.get(key), within):
                return found
        return None
    return None if there == here else f"{name} is {_short(there)} there and {_short(here)} here"


def _programs_differ(there: Any, here: Any, name: str) -> str | None:
    return None if there == here else f"{name} computes something else there"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _program(function: Callable, *arguments: Any) -> str:
    """A hash of what a function computes: its operations, and the arrays that it holds."""
    return _Hasher().of(jax.make_jaxpr(function)(*arguments))


class _Hasher:
    """Hashes of programs and of what they are made of. Parts that programs share are looked at once."""

    def __init__(self):
        self.known: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        """The hash of a program, or of a parameter of one of its operations."""
        if id(value) not in self.known:
            # The value is kept as well, so that no other can get its id.
            self.known[id(value)] = value, hashlib.sha256(self._content(value)).hexdigest()
        return self.known[id(value)][1]

    def _content(self, value: Any) -> bytes:
        match value:
            case ClosedJaxpr():
                return self._all([value.jaxpr, *value.consts])
            case Jaxpr():
                return self._all(self._lines(value))
            case str() | bytes():
                return repr(value).encode()
            case dict():
                return self._all([item for key in sorted(value, key=str) for item in (str(key), value[key])])
            case tuple() | list():
                return self._all(value)
            case set() | frozenset():
                return repr(sorted(map(str, value))).encode()
            case _ if eqx.is_array_like(value):
                array = np.asarray(jax.random.key_data(value) if _is_key(value) else value)
                return f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
            case _:
                return _ADDRESS.sub("", repr(value)).encode()

    def _all(self, parts: Any) -> bytes:
        return " ".join(map(self.of, parts)).encode()

    def _lines(self, program: Jaxpr) -> list[Any]:
        """Each operation: its name, what goes in, what comes out, and its parameters."""
        numbers: dict[Any, int] = {}

        def place(variable: Any) -> Any:
            if isinstance(variable, Literal):
                return variable.val
            return f"{numbers.setdefault(variable, len(numbers))}:{variable.aval}"

        lines: list[Any] = [[place(variable) for variable in (*program.constvars, *program.invars)]]
        for operation in program.eqns:
            ends = [[place(variable) for variable in side] for side in (operation.invars, operation.outvars)]
            lines.append([operation.primitive.name, *ends, operation.params])
        return [*lines, [place(variable) for variable in program.outvars]]


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
