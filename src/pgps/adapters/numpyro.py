"""NumPyro's models (extra `numpyro`).

A model's latent variables are sampled in the unconstrained coordinates that NumPyro itself has for them. The data are
part of the density, and not arguments of the compiled program, so that a model may compute sizes from them.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from pgps.adapters import _extra
from pgps.adapters.base import AbstractModel, sample_model
from pgps.initial import AbstractLaw, Custom
from pgps.methods.base import AbstractMethod
from pgps.result import Result


def sample(
    model: Callable,
    *args: Any,
    key: Array,
    num_particles: int = 1000,
    method: AbstractMethod | None = None,
    initial: AbstractLaw | tuple[Callable, Callable] | None = None,
    progress: bool | None = None,
    **data: Any,
) -> Result:
    """Sample the posterior of a NumPyro model.

    The result's particles are the model's variables by name, constrained, with `numpyro.deterministic` ones among them.

    Args:
        model: The model: a function with NumPyro's primitives.
        *args: What the model is called with.
        key: A key from `jax.random.key`.
        num_particles: How many particles.
        method: The sampler; `pgps.exact()` if none is given.
        initial: A law of the unconstrained parameters to start from. If none is given, it is the model's prior where
            that can be drawn from, and a Gaussian around a quick fit otherwise.
        progress: Whether to show a progress bar; None shows it on a terminal.
        **data: What the model is called with, by name.
    """
    return sample_model(NumPyroModel(model, *args, **data), key, num_particles, method, initial, {"progress": progress})


class NumPyroModel(AbstractModel):
    """A NumPyro model and its data, as a log-density of a dict of unconstrained parameters.

    Args:
        model: The model: a function with NumPyro's primitives.
        *args: What the model is called with.
        **data: What the model is called with, by name.
    """

    def __init__(self, model: Callable, *args: Any, **data: Any):
        numpyro = _extra.load("numpyro", "numpyro")
        infer = _extra.load("numpyro.infer", "numpyro")
        self._util, self._handlers = infer.util, numpyro.handlers
        self._name = getattr(model, "__name__", type(model).__name__)
        self._args, self._data = args, data
        _check_call(self._name, model, args, data)
        # A prior may be improper: values near 0 in unconstrained coordinates exist all the same.
        begin = self._handlers.seed(model, 0)
        trace = self._trace(self._handlers.substitute(begin, substitute_fn=infer.init_to_uniform))
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        self._latent = {name: site for name, site in sites.items() if not site["is_observed"]}
        self._observed = [name for name, site in sites.items() if site["is_observed"]]
        _check_latent(self._name, self._latent, bool(sites))
        # As in NumPyro's own MCMC, parameters without a prior stay at their first values.
        fixed = {name: site["value"] for name, site in trace.items() if site["type"] in ("param", "mutable")}
        self._unseeded = self._handlers.substitute(model, data=fixed)
        self._model = self._handlers.seed(self._unseeded, 0)
        values = {name: site["value"] for name, site in self._latent.items()}
        particle = jax.eval_shape(lambda: self._util.unconstrain_fn(self._model, args, data, values))
        self._template = {name: jnp.zeros(particle[name].shape, particle[name].dtype) for name in values}

    def __repr__(self) -> str:
        return f"NumPyroModel({self._name})"

    @property
    def template(self) -> dict[str, Array]:
        """One particle: all parameters at 0."""
        return self._template

    def __call__(self, particle: PyTree[Float[Array, "..."]]) -> Scalar:
        """The joint log-density of one unconstrained particle and the data, with the Jacobian's term."""
        return -self._util.potential_energy(self._model, self._args, self._data, particle)

    def constrain(self, particles: PyTree[Float[Array, "n ..."]]) -> dict[str, Array]:
        """The latent variables and the deterministic ones, by name."""

        def one(particle: PyTree) -> dict[str, Array]:
            return self._util.constrain_fn(self._model, self._args, self._data, particle, return_deterministic=True)

        return jax.jit(jax.vmap(one))(particles)

    def unconstrain(self, variables: dict[str, Array]) -> dict[str, Array]:
        """The unconstrained parameters of one set of latent variables."""
        return self._util.unconstrain_fn(self._model, self._args, self._data, variables)

    def has_prior(self) -> bool:
        """Whether every latent variable has a proper prior that counts once."""
        return self._improper() is None

    def prior(self) -> AbstractLaw:
        """The prior of the unconstrained parameters; draws are NumPyro's own."""
        improper = self._improper()
        if improper is not None:
            raise ValueError(
                f"initial cannot be the prior of {self._name}: that of {improper}; pass a law of the unconstrained "
                "parameters, such as pgps.Normal(model.template, 1.0), or none for a Gaussian around a quick fit"
            )
        return Custom(self._draw, self._log_prior)

    def _improper(self) -> str | None:
        """A latent variable that the prior does not tell how to draw, and why."""
        for name, site in self._latent.items():
            kind = type(site["fn"]).__name__
            if "Improper" in kind:
                return f"{name!r} ({kind}) is improper"
            if site["scale"] is not None or "Masked" in kind:
                return f"{name!r} is scaled or masked, so that it is not the law that it would be drawn from"
        return None

    def _draw(self, key: Array) -> dict[str, Array]:
        trace = self._trace(self._handlers.seed(self._unseeded, key))
        draws = self.unconstrain({name: trace[name]["value"] for name in self._latent})
        # A value that rounding has put on the edge of the support, such as a gamma variable at 0.
        return {name: _finite(value) for name, value in draws.items()}

    def _log_prior(self, particle: PyTree) -> Scalar:
        prior = self._handlers.block(self._model, hide=self._observed)
        return -self._util.potential_energy(prior, self._args, self._data, particle)

    def _trace(self, model: Callable) -> dict[str, Any]:
        return self._handlers.trace(model).get_trace(*self._args, **self._data)


def _finite(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Infinite unconstrained values become those of the smallest and the largest number that there is."""
    limits = jnp.finfo(x.dtype)
    return jnp.where(x == jnp.inf, jnp.log(limits.max), jnp.where(x == -jnp.inf, jnp.log(limits.tiny), x))


def _check_call(name: str, model: Callable, args: tuple, data: dict[str, Any]) -> None:
    if not callable(model):
        raise TypeError(f"model must be a function with NumPyro's primitives, got {model!r}; pass the function itself")
    signature = inspect.signature(model)
    takes = ", ".join(signature.parameters)
    try:
        signature.bind(*args, **data)
    except TypeError as error:
        raise TypeError(f"model {name}({takes}) does not fit the data ({error}); match names and number") from None


def _check_latent(name: str, latent: dict[str, Any], has_sites: bool) -> None:
    if not has_sites:
        raise ValueError(
            f"model {name} must have a latent variable, but it calls numpyro.sample nowhere; call it, or, if it makes "
            "a PyMC model for the command line, declare it to: def model(...) -> pm.Model"
        )
    if not latent:
        raise ValueError(
            f"model {name} must have a latent variable, but all its sample sites are observed; leave one without obs"
        )
    for variable, site in latent.items():
        if site["fn"].support.is_discrete:
            raise ValueError(
                f"model {name} must have continuous latent variables, but {variable!r} ({type(site['fn']).__name__}) "
                "is discrete; sum it out, as numpyro.distributions.MixtureSameFamily does"
            )
