"""What every metric takes: particles (n, dim) and log-weights (n,), checked and as NumPy arrays of doubles."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

from pgps._checks import show, whole

AnyArray = Array | np.ndarray


def finite_array(name: str, value: object, ndim: int) -> np.ndarray:
    """Return `value` in double precision, or raise unless it is a non-empty array of `ndim` axes, all finite."""
    array = _real_array(name, value)
    if array.ndim != ndim:
        remedy = f"pass {name}[:, None] for one dimension" if (ndim, array.ndim) == (2, 1) else "reshape it"
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}; {remedy}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}; pass at least one row and one column")
    wrong = np.count_nonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))
    if wrong:
        raise ValueError(f"{name} must be finite, got nan or inf in {wrong} of {len(array)} rows; leave them out")
    return array


def same_dim(name: str, value: np.ndarray, other: str, dim: int) -> None:
    """Raise unless the points `value` have as many coordinates as those that are named `other`."""
    if value.shape[1] != dim:
        raise ValueError(f"{name} must have {dim} columns as {other}, got shape {value.shape}; compare equal spaces")


def one_dimension(name: str, value: np.ndarray, remedy: str) -> np.ndarray:
    """Return the only coordinate of the points `value`, or raise if there are more."""
    if value.shape[1] != 1:
        raise ValueError(f"{name} must have one column, got shape {value.shape}; {remedy}")
    return value[:, 0]


def normalised_weights(
    log_weights: Float[AnyArray, " n"] | None, n: int, name: str = "log_weights"
) -> Float[np.ndarray, " n"]:
    """The weights of `n` particles, which sum to 1.

    Args:
        log_weights: Their logarithms up to a constant, -inf for a weight of 0; None for equal weights.
        n: The number of particles.
        name: What an error calls the log-weights.
    """
    whole("n", n, at_least=1)
    if log_weights is None:
        return np.full(n, 1 / n)
    values = _real_array(name, log_weights)
    if values.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), got {values.shape}; pass one number per particle")
    if np.any(np.isnan(values) | (values == np.inf)):
        raise ValueError(f"{name} must be finite or -inf, got {show(values)}; replace nan and inf")
    if np.all(values == -np.inf):
        raise ValueError(f"{name} must leave a particle with weight, got -inf only; pass None for equal weights")
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def families_of(ancestors: Int[AnyArray, " n"] | None, n: int) -> Int[np.ndarray, " n"]:
    """The family of each of `n` particles, numbered from 0 on; each is one of its own if no ancestors are given."""
    if ancestors is None:
        return np.arange(n)
    values = np.asarray(ancestors)
    if values.shape != (n,) or not np.issubdtype(values.dtype, np.integer):
        got = f"shape {values.shape} and dtype {values.dtype}"
        raise ValueError(f"ancestors must be {n} whole numbers, got {got}; pass one index per particle")
    return np.unique(values, return_inverse=True)[1]


def _real_array(name: str, value: Any) -> np.ndarray:
    try:
        if not np.iscomplexobj(value):
            return np.asarray(value, float)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} must be an array of real numbers, got {show(value)}; pass a JAX or NumPy array")
