"""A density of constrained parameters as one of unconstrained ones: ln p(f(x)) + ln |det df/dx|."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from pgps import _checks
from pgps.bijectors.base import AbstractBijector
from pgps.initial import AbstractLaw, Custom, as_law


def _is_bijector(node: Any) -> bool:
    return isinstance(node, AbstractBijector)


def _each(apply: Callable[[AbstractBijector, Array], Array], bijectors: PyTree, particle: PyTree) -> PyTree:
    """Apply every bijector to its part of the particle; one that stands for a whole branch meets all its leaves."""

    def branch(bijector: AbstractBijector, part: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: apply(bijector, jnp.asarray(leaf)), part)

    treedef = jax.tree.structure(bijectors, is_leaf=_is_bijector)
    try:
        parts = treedef.flatten_up_to(particle)
    except ValueError:
        raise ValueError(
            f"bijectors must have the particle's structure {jax.tree.structure(particle)}, got {treedef}; give each "
            "parameter one, bijectors.Identity() where there is no constraint"
        ) from None
    flat = jax.tree.leaves(bijectors, is_leaf=_is_bijector)
    return jax.tree.unflatten(treedef, [branch(*pair) for pair in zip(flat, parts, strict=True)])


class Unconstrained(eqx.Module):
    """A log-density of constrained parameters, called with unconstrained ones; `unconstrain` makes it."""

    logdensity_fn: Callable[[PyTree], Scalar]
    bijectors: PyTree[AbstractBijector]

    def __call__(self, particle: PyTree[Float[Array, "..."]]) -> Scalar:
        """The log-density of one unconstrained particle, with the Jacobian's term."""
        log_dets = _each(lambda bijector, x: bijector.log_det(x), self.bijectors, particle)
        value = self.logdensity_fn(_each(lambda bijector, x: bijector.forward(x), self.bijectors, particle))
        return value + jnp.sum(jnp.stack(jax.tree.leaves(log_dets)))

    def constrain(self, particles: PyTree[Float[Array, "n ..."]]) -> PyTree[Float[Array, "n ..."]]:
        """The constrained values of many particles: of `Result.particles`, say."""
        return jax.vmap(lambda x: _each(lambda bijector, leaf: bijector.forward(leaf), self.bijectors, x))(particles)

    def unconstrain(self, particles: PyTree[Float[Array, "n ..."]]) -> PyTree[Float[Array, "n ..."]]:
        """The way back: unconstrained values of many constrained particles."""
        return jax.vmap(lambda y: _each(lambda bijector, leaf: bijector.inverse(leaf), self.bijectors, y))(particles)


def unconstrain(logdensity_fn: Callable[[PyTree], Scalar], bijectors: PyTree[AbstractBijector]) -> Unconstrained:
    """Turn a log-density of constrained parameters into one of unconstrained parameters.

    Args:
        logdensity_fn: Takes one particle that obeys the constraints and returns its log-density, a scalar.
        bijectors: A pytree like the particle, with a bijector for each parameter; one bijector may stand for a whole
            branch.
    """
    _checks.function("logdensity_fn", logdensity_fn, "(particle) -> scalar")
    for node in jax.tree.leaves(bijectors, is_leaf=lambda node: node is None or _is_bijector(node)) or [bijectors]:
        _checks.instance("bijectors", node, AbstractBijector, "pgps.bijectors, bijectors.Identity() for no constraint")
    return Unconstrained(logdensity_fn, bijectors)


def unconstrain_law(law: AbstractLaw | tuple[Callable, Callable], bijectors: PyTree[AbstractBijector]) -> AbstractLaw:
    """Turn a law of constrained parameters, such as a prior, into one of unconstrained parameters to start from.

    Args:
        law: A law that draws particles which obey the constraints, or a pair of functions (sample, logdensity).
        bijectors: A pytree like the particle, with a bijector for each parameter.
    """
    constrained = as_law(law)
    return Custom(_Draw(constrained, bijectors), unconstrain(constrained.logdensity, bijectors))


class _Draw(eqx.Module):
    """Draws a constrained particle and unconstrains it."""

    law: AbstractLaw
    bijectors: PyTree[AbstractBijector]

    def __call__(self, key: Array) -> PyTree[Float[Array, "..."]]:
        return _each(lambda bijector, leaf: bijector.inverse(leaf), self.bijectors, self.law.sample(key))
