"""Argument checks: each error names the argument, its value and the remedy, on one line."""

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def show(value: object) -> str:
    """`value` as it was written, on one line and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def number(name: str, value: object) -> float:
    """Return `value` as a float, or raise if it is not one finite real number."""
    try:
        result = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {show(value)}; pass one real number") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {show(value)}; pass a finite number")
    return result


def numbers(name: str, values: object) -> np.ndarray:
    """Return `values` as an array of real numbers, which may be nan, or raise if some are none."""
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be numbers, got {show(values)}; replace words by numbers") from None


def positive(name: str, value: object) -> None:
    """Raise unless `value` is a finite number above zero."""
    if number(name, value) <= 0:
        raise ValueError(f"{name} must be positive, got {show(value)}; pass a number above 0")


def within(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """Raise unless `value` lies in [low, high], or in (low, high] with `open_low`."""
    x = number(name, value)
    if not low <= x <= high or (open_low and x == low):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}]"
        raise ValueError(f"{name} must lie in {interval}, got {show(value)}; choose a value inside it")


def between(name: str, value: object, low: float, high: float) -> None:
    """Raise unless `value` lies strictly between `low` and `high`."""
    if not low < number(name, value) < high:
        raise ValueError(f"{name} must lie in ({low:g}, {high:g}), got {show(value)}; choose a value inside it")


def whole(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    """Raise unless `value` is an integer of at least `at_least` and, if given, at most `at_most`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {show(value)}; pass an integer")
    number = value.__index__()  # pyright: ignore[reportAttributeAccessIssue]
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {show(value)}; pass a larger integer")
    if at_most is not None and number > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {show(value)}; pass a smaller integer")


def function(name: str, value: object, signature: str) -> None:
    """Raise unless `value` can be called; `signature` tells what is expected."""
    if not isinstance(value, Callable):
        raise TypeError(f"{name} must be a function {signature}, got {show(value)}; pass a callable")


def instance(name: str, value: object, kind: type[T], examples: str) -> T:
    """Return `value`, or raise if it is not of the family `kind`; `examples` names members."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be one of {examples}, got {show(value)}; pass an instance of one of these")
    return value
