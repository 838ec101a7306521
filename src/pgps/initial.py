"""Initial laws p0: what can be drawn from and has a normalised log-density.

A law speaks of one particle, which may be any pytree of floating-point arrays. `pgps.Normal` and `pgps.Uniform` cover
the common cases; any pair of functions (sample, logdensity) makes a law too.
"""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from pgps import _checks


class AbstractLaw(eqx.Module):
    """A distribution of one particle that can be sampled and evaluated."""

    @abc.abstractmethod
    def sample(self, key: Array) -> PyTree[Float[Array, "..."]]:
        """Draw one particle."""

    @abc.abstractmethod
    def logdensity(self, x: PyTree[Float[Array, "..."]]) -> Scalar:
        """The normalised log-density of one particle."""

    @abc.abstractmethod
    def mean(self) -> PyTree[Float[Array, "..."]]:
        """The mean, which is where a shrinkage path is centred unless told otherwise."""

    @property
    def covers(self) -> bool:
        """Whether it is made to cover the target, so that a path need not go in search of modes beyond it."""
        return False


def _float_array(name: str, value: Any) -> Float[Array, "..."]:
    """Convert to a floating-point array; Python's own whole numbers pass, integer arrays do not."""
    dtype = np.asarray(value).dtype if not isinstance(value, jax.Array) else value.dtype
    is_python_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_python_number and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, got {dtype} values; convert it, as in jnp.asarray(x, float)")
    # Python's own numbers take the dtype of the arrays that they meet.
    array = jnp.asarray(float(value)) if is_python_number else jnp.asarray(value)
    if not bool(jnp.all(jnp.isfinite(array))):
        raise ValueError(f"{name} must be finite, got {_checks.show(value)}; remove nan and inf")
    return array


def _matching(
    first: tuple[str, PyTree], second: tuple[str, PyTree], shape: tuple[int, ...] | None
) -> tuple[PyTree, PyTree]:
    """Bring two parameters to one pytree structure, leaf by leaf to one shape."""
    (name_a, a), (name_b, b) = first, second
    a = jax.tree.map(lambda leaf: _float_array(name_a, leaf), a)
    b = jax.tree.map(lambda leaf: _float_array(name_b, leaf), b)
    tree_a, tree_b = jax.tree.structure(a), jax.tree.structure(b)
    if tree_a.num_leaves == 0:
        raise ValueError(f"{name_a} must hold at least one array, got {_checks.show(a)}; describe one particle")
    if tree_a != tree_b:
        if tree_b == jax.tree.structure(0):
            b = jax.tree.map(lambda _: b, a)
        elif tree_a == jax.tree.structure(0):
            a = jax.tree.map(lambda _: a, b)
        else:
            raise ValueError(f"{name_b} must match {name_a}'s structure {tree_a}, got {tree_b}; use the same pytree")

    pairs = [_align((name_a, x), (name_b, y), shape) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)]
    treedef = jax.tree.structure(a)
    return jax.tree.unflatten(treedef, [x for x, _ in pairs]), jax.tree.unflatten(treedef, [y for _, y in pairs])


def _align(first: tuple[str, Array], second: tuple[str, Array], shape: tuple[int, ...] | None) -> tuple[Array, Array]:
    """Broadcast two leaves, and `shape` where it is given, to one shape and dtype."""
    (name_a, a), (name_b, b) = first, second
    try:
        full = jnp.broadcast_shapes(a.shape, b.shape, shape or ())
        if shape is not None and full != tuple(shape):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name_a} {a.shape}, {name_b} {b.shape} and shape {shape} do not broadcast; make them agree"
        ) from None
    dtype = jnp.result_type(a, b)
    return jnp.broadcast_to(a, full).astype(dtype), jnp.broadcast_to(b, full).astype(dtype)


def _split_like(key: Array, tree: PyTree) -> PyTree:
    treedef = jax.tree.structure(tree)
    return jax.tree.unflatten(treedef, list(jax.random.split(key, treedef.num_leaves)))


def _total(tree: PyTree) -> Scalar:
    return jnp.sum(jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(tree)]))


class Normal(AbstractLaw):
    """Independent Gaussian coordinates.

    Args:
        mean: The mean: a number, an array, or a pytree of arrays that has the structure of one particle.
        scale: Standard deviations: a number, an array, or a pytree like `mean`.
        shape: The shape of one particle, where neither `mean` nor `scale` tells it.
    """

    loc: PyTree[Float[Array, "..."]]
    scale: PyTree[Float[Array, "..."]]

    def __init__(self, mean: PyTree = 0.0, scale: PyTree = 1.0, *, shape: tuple[int, ...] | None = None):
        self.loc, self.scale = _matching(("mean", mean), ("scale", scale), shape)
        if not all(bool(jnp.all(leaf > 0)) for leaf in jax.tree.leaves(self.scale)):
            raise ValueError(f"scale must be positive, got {_checks.show(scale)}; pass standard deviations above 0")

    def sample(self, key: Array) -> PyTree[Float[Array, "..."]]:
        """Draw one particle."""

        def draw(key: Array, loc: Array, scale: Array) -> Array:
            return loc + scale * jax.random.normal(key, loc.shape, loc.dtype)

        return jax.tree.map(draw, _split_like(key, self.loc), self.loc, self.scale)

    def logdensity(self, x: PyTree[Float[Array, "..."]]) -> Scalar:
        """The normalised log-density of one particle."""
        return _total(jax.tree.map(jax.scipy.stats.norm.logpdf, x, self.loc, self.scale))

    def mean(self) -> PyTree[Float[Array, "..."]]:
        """The mean."""
        return self.loc


class FullNormal(AbstractLaw):
    """A Gaussian on one vector with a full covariance matrix.

    Args:
        mean: The mean, a vector.
        covariance: A symmetric positive definite matrix.
    """

    loc: Float[Array, " dim"]
    cholesky: Float[Array, "dim dim"]

    def __init__(self, mean: Float[Array, " dim"], covariance: Float[Array, "dim dim"]):
        self.loc = _float_array("mean", mean)
        matrix = _float_array("covariance", covariance)
        if self.loc.ndim != 1 or matrix.shape != 2 * self.loc.shape:
            raise ValueError(
                f"covariance must have shape (D, D) for a mean of shape (D,), got {matrix.shape} for {self.loc.shape}; "
                "pass a vector and a square matrix"
            )
        self.cholesky = jnp.linalg.cholesky(matrix)
        if not bool(jnp.allclose(matrix, matrix.T)) or not bool(jnp.all(jnp.isfinite(self.cholesky))):
            raise ValueError("covariance must be symmetric and positive definite, got one that is not; check it")

    def sample(self, key: Array) -> Float[Array, " dim"]:
        """Draw one particle."""
        return self.loc + self.cholesky @ jax.random.normal(key, self.loc.shape, self.loc.dtype)

    def logdensity(self, x: Float[Array, " dim"]) -> Scalar:
        """The normalised log-density of one particle."""
        z = jax.scipy.linalg.solve_triangular(self.cholesky, x - self.loc, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(self.cholesky)))
        return -0.5 * jnp.sum(z**2) - log_det - 0.5 * x.size * math.log(2 * math.pi)

    def mean(self) -> Float[Array, " dim"]:
        """The mean."""
        return self.loc


class Uniform(AbstractLaw):
    """The uniform law on a box.

    Args:
        low: Lower edges: a number, an array, or a pytree of arrays that has the structure of one particle.
        high: Upper edges: a number, an array, or a pytree like `low`.
        shape: The shape of one particle, where neither `low` nor `high` tells it.
    """

    low: PyTree[Float[Array, "..."]]
    high: PyTree[Float[Array, "..."]]

    def __init__(self, low: PyTree = 0.0, high: PyTree = 1.0, *, shape: tuple[int, ...] | None = None):
        self.low, self.high = _matching(("low", low), ("high", high), shape)
        wide = jax.tree.map(lambda low, high: bool(jnp.all(low < high)), self.low, self.high)
        if not all(jax.tree.leaves(wide)):
            raise ValueError(
                f"low must lie below high, got low={_checks.show(low)} and high={_checks.show(high)}; exchange them"
            )

    def sample(self, key: Array) -> PyTree[Float[Array, "..."]]:
        """Draw one particle."""

        def draw(key: Array, low: Array, high: Array) -> Array:
            return jax.random.uniform(key, low.shape, low.dtype, low, high)

        return jax.tree.map(draw, _split_like(key, self.low), self.low, self.high)

    def logdensity(self, x: PyTree[Float[Array, "..."]]) -> Scalar:
        """The normalised log-density of one particle: -inf outside the box."""

        def log_uniform(x: Array, low: Array, high: Array) -> Array:
            return jnp.where((low <= x) & (x <= high), -jnp.log(high - low), -jnp.inf)

        return _total(jax.tree.map(log_uniform, x, self.low, self.high))

    def mean(self) -> PyTree[Float[Array, "..."]]:
        """The centre of the box."""
        return jax.tree.map(lambda low, high: (low + high) / 2, self.low, self.high)


class Custom(AbstractLaw):
    """A law from a pair of functions.

    Args:
        sample_fn: Takes a key and returns one particle.
        logdensity_fn: Takes one particle and returns its normalised log-density.
        center: The mean, if known. Otherwise it is estimated from 1,000 draws with a fixed key, so that the path that
            is centred there does not depend on the run.
    """

    sample_fn: Callable[[Array], PyTree]
    logdensity_fn: Callable[[PyTree], Scalar]
    center: PyTree[Float[Array, "..."]] | None = None

    def __check_init__(self):
        _checks.function("sample_fn", self.sample_fn, "(key) -> particle")
        _checks.function("logdensity_fn", self.logdensity_fn, "(particle) -> scalar")

    def sample(self, key: Array) -> PyTree[Float[Array, "..."]]:
        """Draw one particle."""
        return self.sample_fn(key)

    def logdensity(self, x: PyTree[Float[Array, "..."]]) -> Scalar:
        """The normalised log-density of one particle."""
        return jnp.asarray(self.logdensity_fn(x))

    def mean(self) -> PyTree[Float[Array, "..."]]:
        """The mean that was given, or its estimate."""
        if self.center is not None:
            return self.center
        draws = jax.vmap(self.sample_fn)(jax.random.split(jax.random.key(0), 1000))
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), draws)


def as_law(initial: Any) -> AbstractLaw:
    """Accept a law, or a pair of functions (sample, logdensity)."""
    if isinstance(initial, tuple) and len(initial) == 2:
        return Custom(*initial)
    return _checks.instance("initial", initial, AbstractLaw, "pgps.Normal, pgps.Uniform or a pair (sample, logdensity)")
