"""Settings as plain data: what a component is made of, for result files and reports."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

Component = TypeVar("Component")

_MOST_ENTRIES = 64


def describe(value: Any) -> Any:
    """Turn a component into numbers, strings, lists and dicts that JSON can hold."""
    if isinstance(value, eqx.Module):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": _qualified_name(type(value)), **fields}
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, partial):
        # Its own text holds an address, which is another one in every process.
        return {"function": describe(value.func), "arguments": describe(value.args), **describe(value.keywords)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if eqx.is_array(value) or isinstance(value, np.generic):
        array = np.asarray(value)
        return (
            describe(array.tolist()) if array.size <= _MOST_ENTRIES else f"{array.dtype} array of shape {array.shape}"
        )
    return _qualified_name(value)


def with_arrays(component: Component, dtype: Any) -> Component:
    """Turn a component's numbers into arrays, so that another value of alpha or psi does not mean another program."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, float | np.floating):
            return jnp.asarray(leaf, dtype)
        return jnp.asarray(leaf) if isinstance(leaf, int | np.integer) and not isinstance(leaf, bool) else leaf

    return jax.tree.map(convert, component)


def all_with_arrays(components: Sequence[Component], dtype: Any) -> list[Component]:
    """The same for several, with one type for each of their numbers: of alpha = 0, 0.5, 1 the first is a float, too."""
    converted = [with_arrays(component, dtype) for component in components]
    if (found := corresponding_leaves(converted)) is None:
        return converted
    groups, treedef = found
    rows = zip(*map(_of_one_type, groups), strict=True)
    return [jax.tree.unflatten(treedef, row) for row in rows]


def corresponding_leaves(members: Sequence[Any]) -> tuple[list[tuple], Any] | None:
    """For each place in pytrees of one structure the leaves there, and the structure; None if they have several."""
    leaves, treedefs = zip(*[jax.tree.flatten(member) for member in members], strict=True)
    if any(treedef != treedefs[0] for treedef in treedefs):
        return None
    return list(zip(*leaves, strict=True)), treedefs[0]


def _of_one_type(numbers: Sequence[Any]) -> Sequence[Any]:
    if not all(eqx.is_array(number) and jnp.issubdtype(number.dtype, jnp.number) for number in numbers):
        return numbers
    if len({number.dtype for number in numbers}) == 1:
        return numbers
    return [jnp.asarray(number, jnp.result_type(*numbers)) for number in numbers]


def _qualified_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', '?')}.{name}"
