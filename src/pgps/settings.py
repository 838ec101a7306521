"""Settings as plain data: what a component is made of, for result files and reports."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import numpy as np

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


def _qualified_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', '?')}.{name}"
