"""The interface of another library's model: a log-density of unconstrained parameters, and the way to its variables."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float, PyTree, Scalar

from pgps.adapters.fit import fitted_normal
from pgps.initial import AbstractLaw
from pgps.methods.base import AbstractMethod
from pgps.result import Result
from pgps.sample import sample


class AbstractModel(abc.ABC):
    """A model as `pgps.sample` takes it: called with one particle of unconstrained parameters, it is a log-density."""

    @property
    @abc.abstractmethod
    def template(self) -> PyTree[Float[Array, "..."]]:
        """One particle: all parameters at 0."""

    @abc.abstractmethod
    def __call__(self, particle: PyTree[Float[Array, "..."]]) -> Scalar:
        """The joint log-density of one unconstrained particle and the data, with the Jacobian's term."""

    @abc.abstractmethod
    def constrain(self, particles: PyTree[Float[Array, "n ..."]]) -> dict[str, Array]:
        """The model's own variables, by name, for many particles; those that are derived from others, too."""

    @abc.abstractmethod
    def prior(self) -> AbstractLaw:
        """The prior of the unconstrained parameters, to start from; a ValueError where it cannot be drawn from."""

    @abc.abstractmethod
    def has_prior(self) -> bool:
        """Whether there is a prior to draw from."""


def starting_law(model: AbstractModel, key: Array) -> AbstractLaw:
    """The prior where it can be drawn from, and a Gaussian around a quick fit otherwise."""
    return model.prior() if model.has_prior() else fitted_normal(model, model.template, key)


def sample_model(
    model: AbstractModel,
    key: Array,
    num_particles: int,
    method: AbstractMethod | None,
    initial: AbstractLaw | tuple[Callable, Callable] | None,
    options: dict[str, Any],
) -> Result:
    """Sample a model; the result's particles are the model's variables."""
    law = starting_law(model, key) if initial is None else initial
    result = sample(model, law, key=key, num_particles=num_particles, method=method, **options)
    return constrained(result, model.constrain)


def constrained(result: Result, constrain: Callable[[PyTree], PyTree]) -> Result:
    """The same result with constrained particles; `Result.draw` works on the one before, whose fields it needs.

    Args:
        result: A result whose particles are unconstrained.
        constrain: Maps all its particles to constrained ones: `Unconstrained.constrain` of `pgps.bijectors`, or that of
            a model in `pgps.adapters`.
    """
    return dataclasses.replace(result, particles=constrain(result.particles), fitted=None)
