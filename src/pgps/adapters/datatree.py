"""Results as an `xarray.DataTree`, which ArviZ reads and NetCDF holds.

    posterior    equally weighted draws, since ArviZ knows no weights: as many as the particles are worth (their ESS)
    particles    all particles as they are, with `log_weight`, and `family` where there are weights
    path_stats   one entry per step of each diagnostic in `Result.trace`

A tree has one chain: particles are no chains, and chains of shuffled draws would agree (R-hat 1) whatever they hold.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from pgps import _checks
from pgps.adapters import _extra
from pgps.weights import systematic

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

    from pgps.result import Result

_RESERVED = ("chain", "draw", "particle", "step", "log_weight", "family")


def to_datatree(
    result: "Result",
    *,
    key: Array | None = None,
    num_draws: int | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence] | None = None,
    constrain: Callable[[PyTree], PyTree] | None = None,
) -> "DataTree":
    """Put a result into an `xarray.DataTree`; see `Result.to_datatree`."""
    from pgps.result import PGPSWarning, Status

    xarray = _extra.load("xarray", "arviz")
    variables = named_variables(result.particles if constrain is None else constrain(result.particles))
    names = _dimensions(variables, dims or {})
    _check_coords(variables, names, coords or {})
    groups = {
        "particles": _dataset(variables, ("particle",), names, coords or {}, _weights(result)),
        "path_stats": _path_stats(result),
    }
    if result.status == Status.COMPLETED:
        indices = _draws(result, key, num_draws)
        drawn = {name: values[None, indices] for name, values in variables.items()}
        groups = {"posterior": _dataset(drawn, ("chain", "draw"), names, coords or {}, {})} | groups
    else:
        warnings.warn(
            f"the run stopped at t = {result.t:.4g} ({result.status.name.lower()}), so its particles are no draws of "
            "the target: the tree has no group posterior",
            PGPSWarning,
            stacklevel=3,
        )
    attributes = _attributes(result)
    tree = xarray.DataTree.from_dict(groups)
    tree.attrs = dict(attributes)
    for node in tree.children.values():
        node.attrs = dict(attributes)
    return tree


def named_variables(particles: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a pytree by name: `mu`, `layer.0.w`, and `x` for a bare array."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(particles):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        if name in _RESERVED or name in named or "/" in name:
            raise ValueError(
                f"variables must have names of their own, without '/' and other than {', '.join(_RESERVED)}, got "
                f"{name!r}; rename it, as in constrain=lambda x: {{'my_name': x[...]}}"
            )
        named[name] = np.asarray(leaf)
    return named


def _dimensions(variables: dict[str, np.ndarray], dims: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The names of each variable's dimensions, beyond the first: the user's, or ArviZ's own `mu_dim_0`."""
    for name in dims:
        if name not in variables:
            raise ValueError(f"dims must name variables among {', '.join(variables)}, got {name!r}; check the name")
    named = {}
    for name, values in variables.items():
        given = tuple(dims.get(name, [f"{name}_dim_{i}" for i in range(values.ndim - 1)]))
        if len(given) != values.ndim - 1:
            raise ValueError(
                f"dims[{name!r}] must have {values.ndim - 1} names, for the shape {values.shape[1:]}, got "
                f"{_checks.show(dims[name])}; name each axis"
            )
        named[name] = given
    return named


def _check_coords(
    variables: dict[str, np.ndarray], names: dict[str, tuple[str, ...]], coords: Mapping[str, Sequence]
) -> None:
    sizes = {dim: size for name in names for dim, size in zip(names[name], variables[name].shape[1:], strict=True)}
    for dim, labels in coords.items():
        if dim not in sizes:
            known = ", ".join(sizes) or "none"
            raise ValueError(f"coords must be of dimensions among {known}, got {dim!r}; name it in dims")
        if len(labels) != sizes[dim]:
            raise ValueError(f"coords[{dim!r}] must have {sizes[dim]} labels, got {len(labels)}; give one per entry")


def _dataset(
    variables: dict[str, np.ndarray],
    leading: tuple[str, ...],
    names: dict[str, tuple[str, ...]],
    coords: Mapping[str, Sequence],
    more: dict[str, Any],
) -> "Dataset":
    xarray = _extra.load("xarray", "arviz")
    arrays = {name: ((*leading, *names[name]), values) for name, values in variables.items()} | more
    sizes = {dim: size for axes, values in arrays.values() for dim, size in zip(axes, values.shape, strict=True)}
    return xarray.Dataset(arrays, {dim: coords.get(dim, np.arange(size)) for dim, size in sizes.items()})


def _weights(result: "Result") -> dict[str, Any]:
    columns = {"log_weight": result.log_weights, "family": result.families}
    return {name: (("particle",), np.asarray(values)) for name, values in columns.items() if values is not None}


def _draws(result: "Result", key: Array | None, num_draws: int | None) -> np.ndarray:
    """Indices of equally weighted draws: a systematic resampling of all, shuffled, of which the first are taken."""
    num = result.num_particles
    worth = num if result.ess is None else max(1, min(num, round(result.ess)))
    _checks.whole("num_draws", worth if num_draws is None else num_draws, at_least=1, at_most=num)
    if key is None:
        # The same result gives the same tree; folded in, since the run has used up its own key.
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(result.provenance["key"], "uint32")), 0)
    key_choose, key_shuffle = jax.random.split(key)
    indices = jax.random.permutation(key_shuffle, systematic(key_choose, result.log_weights))
    return np.asarray(indices[: worth if num_draws is None else num_draws])


def _path_stats(result: "Result") -> "Dataset":
    names = {name: tuple(f"{name}_dim_{i}" for i in range(values.ndim - 1)) for name, values in result.trace.items()}
    trace = {name: np.asarray(values) for name, values in result.trace.items()}
    return _dataset(trace, ("step",), names, {}, {})


def _attributes(result: "Result") -> dict[str, str | float]:
    """What ArviZ looks for, what the run found, and all settings as JSON; NetCDF holds numbers and strings."""
    provenance = result.provenance
    attributes: dict[str, Any] = {
        "created_at": provenance["created"],
        "inference_library": "pgps",
        "inference_library_version": provenance["versions"]["pgps"],
        "sampling_time": provenance["seconds"],
        "status": result.status.name.lower(),
        "t": result.t,
        "ess": result.ess,
        "log_evidence": result.log_evidence,
        "log_evidence_error": result.log_evidence_error,
        "num_gradients": int(result.num_evaluations.gradients),
        "num_values": int(result.num_evaluations.values),
        "warnings": "\n".join(result.warnings) or "none",
        "provenance": json.dumps(provenance),
    }
    return {name: value for name, value in attributes.items() if value is not None}
