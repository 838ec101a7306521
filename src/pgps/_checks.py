"""Argument checks: each error names the argument, its value and the remedy, on one line."""

import math
from collections.abc import Callable


def number(name: str, value: object) -> float:
    """Return `value` as a float, or raise if it is not one finite real number."""
    try:
        result = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}; pass one real number") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {value!r}; pass a finite number")
    return result


def positive(name: str, value: object) -> None:
    """Raise unless `value` is a finite number above zero."""
    if number(name, value) <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}; pass a number above 0")


def within(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """Raise unless `value` lies in [low, high], or in (low, high] with `open_low`."""
    x = number(name, value)
    if not low <= x <= high or (open_low and x == low):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}]"
        raise ValueError(f"{name} must lie in {interval}, got {value!r}; choose a value inside it")


def whole(name: str, value: object, *, at_least: int) -> None:
    """Raise unless `value` is an integer of at least `at_least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}; pass an integer")
    if value.__index__() < at_least:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(f"{name} must be at least {at_least}, got {value!r}; pass a larger integer")


def function(name: str, value: object, signature: str) -> None:
    """Raise unless `value` can be called; `signature` tells what is expected."""
    if not isinstance(value, Callable):
        raise TypeError(f"{name} must be a function {signature}, got {value!r}; pass a callable")


def instance(name: str, value: object, kind: type, examples: str) -> None:
    """Raise unless `value` is of the family `kind`; `examples` names members."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be one of {examples}, got {value!r}; pass an instance of one of these")
