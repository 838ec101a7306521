"""PyMC's models (extra `pymc`), as JAX functions by way of PyTensor.

Importing PyTensor's JAX functions switches JAX to double precision for the whole process. Here that is undone: a model
is sampled in the precision that JAX had before. With jax.config.update("jax_enable_x64", True) that is double.

The log-density comes from `Model.logp` itself: the `negative_logp` of PyMC's `get_jaxified_logp` means the opposite of
its name, since True, its default, gives ln p, and False gives -ln p.
"""

import warnings
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
    model: Any,
    *,
    key: Array,
    num_particles: int = 1000,
    method: AbstractMethod | None = None,
    initial: AbstractLaw | tuple[Callable, Callable] | None = None,
    progress: bool | None = None,
) -> Result:
    """Sample the posterior of a PyMC model.

    The result's particles are the model's variables by name, constrained, with `pymc.Deterministic` ones among them.

    Args:
        model: A `pymc.Model`.
        key: A key from `jax.random.key`.
        num_particles: How many particles.
        method: The sampler; `pgps.exact()` if none is given.
        initial: A law of the unconstrained parameters to start from. If none is given, it is the model's prior where
            JAX can draw from it, and a Gaussian around a quick fit otherwise.
        progress: Whether to show a progress bar; None shows it on a terminal.
    """
    return sample_model(PyMCModel(model), key, num_particles, method, initial, {"progress": progress})


class PyMCModel(AbstractModel):
    """A PyMC model as a log-density of a dict of unconstrained parameters, which PyMC calls `tau_log__` and the like.

    Args:
        model: A `pymc.Model`.
    """

    def __init__(self, model: Any):
        pymc = _extra.load("pymc", "pymc")
        if not isinstance(model, pymc.Model):
            raise TypeError(f"model must be a pymc.Model, got {model!r}; pass the object of `with pm.Model() as model`")
        _check_free(model)
        self._model = model
        self._jax = _jax_module()
        self._names = [variable.name for variable in model.value_vars]
        start = model.initial_point()
        self._template = {name: jnp.zeros(start[name].shape) for name in self._names}
        self._logp = self._graph(model.logp())
        self._log_prior = self._graph(model.logp(vars=model.free_RVs))
        shown = pymc.util.get_default_varnames(model.unobserved_value_vars, include_transformed=False)
        self._shown = [variable.name for variable in shown]
        self._constrained = self._jax.get_jaxified_graph(inputs=model.value_vars, outputs=list(shown))
        self._draw, self._improper = self._forward()

    def __repr__(self) -> str:
        return f"PyMCModel({self._model.name or ', '.join(self._names)})"

    @property
    def template(self) -> dict[str, Array]:
        """One particle: all parameters at 0."""
        return self._template

    def __call__(self, particle: PyTree[Float[Array, "..."]]) -> Scalar:
        """The joint log-density of one unconstrained particle and the data, with the Jacobian's term."""
        return self._logp(particle)

    def constrain(self, particles: PyTree[Float[Array, "n ..."]]) -> dict[str, Array]:
        """The free variables and the deterministic ones, by name."""

        def one(particle: PyTree) -> dict[str, Array]:
            values = _quietly(self._constrained, *[particle[name] for name in self._names])
            return dict(zip(self._shown, values, strict=True))

        return jax.jit(jax.vmap(one))(particles)

    def has_prior(self) -> bool:
        """Whether JAX can draw from the prior of every free variable."""
        return self._improper is None

    def prior(self) -> AbstractLaw:
        """The prior of the unconstrained parameters; draws are PyTensor's, on JAX."""
        if self._improper is not None:
            raise ValueError(
                f"initial cannot be the prior of this model: {self._improper}; pass a law of the unconstrained "
                "parameters, such as pgps.Normal(model.template, 1.0), or none for a Gaussian around a quick fit"
            )
        return Custom(self._draw, self._log_prior)

    def _graph(self, output: Any) -> Callable[[PyTree], Scalar]:
        """A scalar of the graph as a function of one particle."""
        function = self._jax.get_jaxified_graph(inputs=self._model.value_vars, outputs=[output])

        def evaluate(particle: PyTree) -> Scalar:
            return _quietly(function, *[particle[name] for name in self._names])[0]

        return evaluate

    def _forward(self) -> tuple[Callable[[Array], PyTree], str | None]:
        """A function that draws one unconstrained particle from the prior, or why there is none."""
        graph, model = _extra.load("pytensor.graph.traversal", "pymc"), self._model
        rvs = model.free_RVs
        transforms = [model.rvs_to_transforms[rv] for rv in rvs]
        outputs = [
            rv if transform is None else transform.forward(rv, *rv.owner.inputs)
            for rv, transform in zip(rvs, transforms, strict=True)
        ]
        names = [model.rvs_to_values[rv].name for rv in rvs]
        inputs = list(graph.graph_inputs(outputs))
        random = [x for x in inputs if isinstance(x.type, self._jax.RandomType)]
        shared = [x for x in inputs if isinstance(x, self._jax.SharedVariable) and x not in random]
        constants = {x: self._jax.pt.constant(x.get_value(borrow=True)) for x in shared}

        def draw(key: Array) -> PyTree:
            keys = jax.random.split(key, len(random))
            values = _quietly(function, *[{"jax_state": key} for key in keys])
            return {name: jnp.asarray(x, float) for name, x in zip(names, values, strict=True)}

        try:
            replaced = self._jax.clone_replace(outputs, replace=constants)
            fgraph = self._jax.FunctionGraph(inputs=random, outputs=replaced, clone=True)
            self._jax.mode.JAX.optimizer.rewrite(fgraph)
            function = self._jax.jax_funcify(fgraph)
            jax.eval_shape(draw, jax.random.key(0))
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return draw, f"a variable is improper, or JAX has no draws of it ({reason})"
        return draw, None


def _jax_module() -> Any:
    """PyMC's module of JAX functions, imported without its change of JAX's precision."""
    before = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _extra.load("pymc.sampling.jax", "pymc")
    finally:
        jax.config.update("jax_enable_x64", before)


def _quietly(function: Callable, *arguments: Any) -> Any:
    """Call a function of PyTensor's, whose graph asks for float64 by name, in the precision that JAX has."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        return function(*arguments)


def _check_free(model: Any) -> None:
    if not model.value_vars:
        raise ValueError("model must have a free variable, but all its variables are observed; leave one without them")
    for variable in model.free_RVs:
        if variable.dtype.startswith(("int", "uint", "bool")):
            raise ValueError(
                f"model must have continuous free variables, but {variable.name!r} is discrete; sum it out, as "
                "pymc.Mixture does"
            )
