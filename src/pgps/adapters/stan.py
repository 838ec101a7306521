"""Stan's models, through BridgeStan (extra `stan`).

Stan's log-density and gradient are computed on the host, one particle after another, and enter the compiled program by
a callback that has a reverse mode. Stan computes in double precision: under JAX's default the results are rounded.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps.adapters import _extra
from pgps.adapters.base import AbstractModel, sample_model
from pgps.initial import AbstractLaw
from pgps.methods.base import AbstractMethod
from pgps.result import Result


def sample(
    model: Any,
    data: str = "",
    *,
    key: Array,
    num_particles: int = 1000,
    method: AbstractMethod | None = None,
    initial: AbstractLaw | tuple[Callable, Callable] | None = None,
    progress: bool | None = None,
) -> Result:
    """Sample the posterior of a Stan model.

    The result's particles are the model's parameters and transformed parameters by name, constrained.

    Args:
        model: A file with a Stan program, which BridgeStan compiles, or a `bridgestan.StanModel`.
        data: The data, as a JSON text or the path of a JSON file; for a file with a program only.
        key: A key from `jax.random.key`.
        num_particles: How many particles.
        method: The sampler; `pgps.exact()` if none is given.
        initial: A law of the vector of unconstrained parameters to start from. A Stan program does not tell its prior
            from its likelihood, so that it is a Gaussian around a quick fit if none is given.
        progress: Whether to show a progress bar; None shows it on a terminal.
    """
    return sample_model(StanModel(model, data), key, num_particles, method, initial, {"progress": progress})


class StanModel(AbstractModel):
    """A Stan model and its data, as a log-density of the vector of unconstrained parameters.

    Args:
        model: A file with a Stan program, which BridgeStan compiles, or a `bridgestan.StanModel`.
        data: The data, as a JSON text or the path of a JSON file; for a file with a program only.
    """

    def __init__(self, model: Any, data: str = ""):
        if isinstance(model, str | Path):
            if not Path(model).is_file():
                raise FileNotFoundError(
                    f"model must be a file with a Stan program, but {model} is none; check the path"
                )
            model = _extra.load("bridgestan", "stan").StanModel(str(model), data)
        elif not hasattr(model, "log_density_gradient"):
            raise TypeError(f"model must be a file or a bridgestan.StanModel, got {model!r}; pass one of these")
        self._stan = model
        self._dim = int(model.param_unc_num())
        if self._dim == 0:
            raise ValueError(f"model {model.name()} must have a parameter, but its block parameters is empty; add one")
        self._call = jax.custom_vjp(self._value)
        self._call.defvjp(self._forward, lambda gradient, cotangent: (cotangent * gradient,))

    def __repr__(self) -> str:
        return f"StanModel({self._stan.name()})"

    @property
    def template(self) -> Float[Array, " dim"]:
        """One particle: all parameters at 0."""
        return jnp.zeros(self._dim)

    def __call__(self, particle: Float[Array, " dim"]) -> Scalar:
        """The joint log-density of one unconstrained particle and the data, with the Jacobian's term."""
        return self._call(particle)

    def constrain(self, particles: Float[Array, "n dim"]) -> dict[str, Array]:
        """Parameters and transformed parameters, by name; Stan's `theta.1`, `theta.2` become one array."""
        rows = [self._stan.param_constrain(row, include_tp=True) for row in np.asarray(particles, np.float64)]
        return _gathered(self._stan.param_names(include_tp=True), jnp.asarray(np.stack(rows), particles.dtype))

    def has_prior(self) -> bool:
        """No: a Stan program does not tell its prior from its likelihood."""
        return False

    def prior(self) -> AbstractLaw:
        """There is none."""
        raise ValueError(
            f"initial cannot be the prior of {self._stan.name()}: a Stan program does not tell its prior from its "
            "likelihood; pass a law of the unconstrained vector, or initial=None for a Gaussian around a quick fit"
        )

    def _value(self, x: Float[Array, " dim"]) -> Scalar:
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(lambda x: self._host(x)[0], shape, x, vmap_method="expand_dims")

    def _forward(self, x: Float[Array, " dim"]) -> tuple[Scalar, Float[Array, " dim"]]:
        shapes = (jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype))
        return jax.pure_callback(self._host, shapes, x, vmap_method="expand_dims")

    def _host(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values and gradients of a batch of any shape."""
        batch = np.asarray(x)
        rows = batch.reshape(-1, self._dim).astype(np.float64)
        values, gradients = np.empty(len(rows)), np.zeros_like(rows)
        for i, row in enumerate(rows):
            try:
                values[i], gradients[i] = self._stan.log_density_gradient(row, propto=False, jacobian=True)
            except RuntimeError:
                # Stan refuses a point where a distribution's argument is out of range: it lies outside the support.
                values[i] = -np.inf
        shape = batch.shape[:-1]
        return values.reshape(shape).astype(batch.dtype), gradients.reshape(batch.shape).astype(batch.dtype)


def _gathered(names: list[str], columns: Float[Array, "n k"]) -> dict[str, Array]:
    """Columns `theta.1`, `theta.2`, ... as one array; Stan counts from 1 and lets the first index run fastest."""
    indices: dict[str, list[tuple[int, ...]]] = {}
    places: dict[str, list[int]] = {}
    for place, full in enumerate(names):
        name, *index = full.split(".")
        indices.setdefault(name, []).append(tuple(int(i) - 1 for i in index))
        places.setdefault(name, []).append(place)
    gathered = {}
    for name, found in indices.items():
        values = columns[:, jnp.asarray(places[name])]
        shape = tuple(max(index[axis] for index in found) + 1 for axis in range(len(found[0])))
        # Column-major: axes in turn, the first fastest.
        gathered[name] = jnp.moveaxis(values.reshape(-1, *reversed(shape)), 0, -1).T
    return gathered
