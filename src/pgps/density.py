"""What is sampled: densities on pytrees, seen as densities on flat vectors.

A method works on particles of shape (N, D). `Problem` holds the user's log-density and initial law and offers both as
functions of one flat vector. `Population` is a set of particles together with all that one evaluation of the path at
them gives: ln p_t, its score and its time derivative, so that nobody has to pay for them again.
"""

import abc
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps.initial import AbstractLaw
from pgps.noise import split
from pgps.spread import ONE_DEVICE, Spread

T = TypeVar("T")

# Where a log-density is below this and its gradient overflows, the density is 0.
NOTHING = -1e10


@partial(jax.jit, static_argnums=0)
def _called(rest: tuple[Any, tuple], arrays: PyTree, *arguments: PyTree) -> PyTree:
    return eqx.combine(arrays, jax.tree.unflatten(*rest))(*arguments)


def shape_of(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """What a function returns, in shapes; it is traced once for all that differ in the values of their arrays alone."""
    arrays, rest = eqx.partition(function, eqx.is_array)
    leaves, treedef = jax.tree.flatten(rest)
    return _called.eval_shape((treedef, tuple(leaves)), arrays, *arguments)


class Structure(eqx.Module):
    """The shape of one particle: maps a pytree of arrays to a flat vector and back."""

    treedef: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    dtypes: tuple[Any, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, particle: PyTree) -> "Structure":
        """Read the structure off one particle (arrays or `jax.ShapeDtypeStruct`s)."""
        leaves, treedef = jax.tree.flatten(particle)
        return cls(treedef, tuple(leaf.shape for leaf in leaves), tuple(leaf.dtype for leaf in leaves))

    @property
    def dim(self) -> int:
        """D, the number of coordinates of a particle."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> Any:
        """The one dtype that holds every coordinate."""
        return jnp.result_type(*self.dtypes)

    @property
    def names(self) -> list[str]:
        """A name for each coordinate: its path in the pytree and its index, as in `theta[3]`."""
        numbered = jax.tree.unflatten(self.treedef, range(len(self.shapes)))
        names = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(numbered):
            root, shape = _leaf_name(path), self.shapes[leaf]
            names += [root] if shape == () else [root + _index(i, shape) for i in range(math.prod(shape))]
        return names

    def ravel(self, particle: PyTree) -> Float[Array, " dim"]:
        """Flatten one particle; a number fills its whole leaf, and a bare number fills every leaf."""
        is_number = jax.tree.structure(particle) == jax.tree.structure(0) and jnp.ndim(particle) == 0
        leaves = [particle] * len(self.shapes) if is_number else self.treedef.flatten_up_to(particle)
        blocks = [jnp.broadcast_to(leaf, shape).ravel() for leaf, shape in zip(leaves, self.shapes, strict=True)]
        return jnp.concatenate([jnp.asarray(block, self.dtype) for block in blocks])

    def unravel(self, x: Float[Array, " dim"]) -> PyTree:
        """Rebuild one particle from its flat vector."""
        leaves, start = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            stop = start + math.prod(shape)
            leaves.append(x[start:stop].reshape(shape).astype(dtype))
            start = stop
        return jax.tree.unflatten(self.treedef, leaves)


def _leaf_name(path: tuple) -> str:
    """How to get at a leaf; the variables of a dict have their own names, as a model's users know them."""
    first = getattr(path[0], "key", None) if path else "x"
    if isinstance(first, str) and first.isidentifier():
        return first + jax.tree_util.keystr(path[1:])
    return jax.tree_util.keystr(path)


def _index(flat: int, shape: tuple[int, ...]) -> str:
    digits = []
    for size in reversed(shape):
        flat, digit = divmod(flat, size)
        digits.append(str(digit))
    return f"[{','.join(reversed(digits))}]"


class AbstractStochasticDensity(eqx.Module):
    """A log-density that can be estimated without bias, and cheaply, on data that a key chooses.

    Methods that are right on average with estimates (Langevin, SGLD, SVGD, PFG, and PGPS without weights) take a new
    one at every evaluation. All others, whose accepting and weighing need the density itself, call it.
    """

    per_particle: eqx.AbstractVar[bool]
    """Whether each particle has an estimate of its own; else all particles share one."""

    @abc.abstractmethod
    def __call__(self, particle: PyTree) -> Scalar:
        """The log-density of one particle."""

    @abc.abstractmethod
    def estimate(self, key: Array) -> Callable[[PyTree], Scalar]:
        """A random function whose mean over keys is the log-density."""


class Problem(eqx.Module):
    """The two ends of a path: the initial law p0 and the target p1, both on flat vectors."""

    logdensity_fn: Callable[[PyTree], Scalar]
    initial: AbstractLaw
    structure: Structure
    center: Float[Array, " dim"]
    spread: Spread = ONE_DEVICE

    @classmethod
    def of(
        cls, logdensity_fn: Callable[[PyTree], Scalar], initial: AbstractLaw, spread: Spread = ONE_DEVICE
    ) -> "Problem":
        """Join a log-density and a law; the law tells the particle's structure and the centre, its mean."""
        structure = Structure.of(shape_of(initial.sample, jax.random.key(0)))
        center = structure.ravel(initial.mean())
        return cls(logdensity_fn, initial, structure, center, spread)

    def log_initial(self, x: Float[Array, " dim"]) -> Scalar:
        """ln p0(x)."""
        return _flat_inside(x, self.structure, self.initial.logdensity)

    def log_target(self, x: Float[Array, " dim"]) -> Scalar:
        """ln p1(x) up to a constant: the user's log-density."""
        return _flat_inside(x, self.structure, self.logdensity_fn)

    def target_score(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient of ln p1(x)."""
        return jax.grad(self.log_target)(x)

    def estimated(self, key: Array) -> "Problem":
        """The same problem with an estimate in place of its target, which must be stochastic."""
        assert isinstance(self.logdensity_fn, AbstractStochasticDensity)
        return eqx.tree_at(lambda problem: problem.logdensity_fn, self, self.logdensity_fn.estimate(key))

    def draw(self, key: Array, num_particles: int) -> Float[Array, "n dim"]:
        """Draw particles from the initial law."""
        keys = split(key, num_particles)
        return jax.vmap(lambda key: self.structure.ravel(self.initial.sample(key)))(keys)


@eqx.filter_custom_vjp
def _flat_inside(x: Float[Array, " dim"], structure: Structure, function: Callable[[PyTree], Scalar]) -> Scalar:
    """A log-density of one flat vector, whose gradient is 0 outside its support, where autodiff's is often nan."""
    return jnp.asarray(function(structure.unravel(x)), structure.dtype)


@_flat_inside.def_fwd
def _forward(perturbed: Any, x: Array, structure: Structure, function: Callable) -> tuple[Scalar, Array]:
    del perturbed
    # The gradient is taken before flattening: that of `unravel` would be a sum of as many vectors as there are leaves.
    value, leaves = jax.value_and_grad(lambda particle: jnp.asarray(function(particle), structure.dtype))(
        structure.unravel(x)
    )
    gradient = structure.ravel(leaves)
    value = jnp.where((value < NOTHING) & ~_all_finite(gradient), -jnp.inf, value)
    return value, jnp.where(value == -jnp.inf, 0.0, gradient)


@_flat_inside.def_bwd
def _backward(gradient: Array, cotangent: Scalar, *_: Any) -> Array:
    return cotangent * gradient


class Evaluations(eqx.Module):
    """How often the user's log-density was called: alone (values), or together with its gradient (gradients).

    Within a run the counts are per particle, so that they fit into 32 bits; a `Result` has them summed over particles.
    """

    values: Int[Array, ""] | int = 0
    gradients: Int[Array, ""] | int = 0

    @property
    def total(self) -> Int[Array, ""] | int:
        """Calls of either kind."""
        return self.values + self.gradients

    def __add__(self, other: "Evaluations") -> "Evaluations":
        return jax.tree.map(lambda a, b: a + b, self, other)


class Population(eqx.Module):
    """Particles and the path's log-density, score and time derivative at each of them."""

    particles: Float[Array, "n dim"]
    logdensity: Float[Array, " n"]
    score: Float[Array, "n dim"]
    time_derivative: Float[Array, " n"]
    extra: PyTree = None
    """What else a method knows at each particle and wants carried along with it."""

    @classmethod
    def of(
        cls,
        particles: Float[Array, "n dim"],
        logdensity: Float[Array, " n"],
        score: Float[Array, "n dim"],
        time_derivative: Float[Array, " n"],
        extra: PyTree = None,
    ) -> "Population":
        """Join particles and values. Outside the support a density has no slope, whatever autodiff says: 0."""
        outside = logdensity == -jnp.inf
        return cls(particles, logdensity, jnp.where(outside[:, None], 0.0, score), time_derivative, extra)

    def where(self, choose: Bool[Array, " n"], other: "Population") -> "Population":
        """This population's particles where `choose` says so, and the other's elsewhere."""

        def pick(a: Array, b: Array) -> Array:
            return jnp.where(choose.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        return jax.tree.map(pick, self, other)

    def take(self, indices: Int[Array, " n"]) -> "Population":
        """The particles with these indices, in this order."""
        return jax.tree.map(lambda leaf: leaf[indices], self)

    @property
    def alive(self) -> Bool[Array, " n"]:
        """Particles inside the support: those with ln p_t > -inf."""
        return self.logdensity > -jnp.inf

    @property
    def usable(self) -> Bool[Array, " n"]:
        """Particles that a field can learn from: inside the support, with a finite time derivative."""
        return self.alive & jnp.isfinite(self.time_derivative)

    @property
    def lost(self) -> Bool[Array, " n"]:
        """Particles that are nowhere: a coordinate is nan or infinite."""
        return ~_all_finite(self.particles)

    @property
    def faulty(self) -> Bool[Array, " n"]:
        """Particles where the density fails: nan or +inf, or a nan among the derivatives inside the support."""
        value = jnp.isnan(self.logdensity) | (self.logdensity == jnp.inf)
        slope = ~_all_finite(self.score) | jnp.isnan(self.time_derivative)
        return value | (self.alive & slope)


def _all_finite(rows: Float[Array, "*n dim"]) -> Bool[Array, "*n"]:
    # 0 x is 0 unless x is nan or infinite; sums of numbers are vectorised on a CPU, conjunctions are not.
    return jnp.sum(0 * rows, axis=-1) == 0


def map_particles(
    function: Callable[[Float[Array, " dim"], Problem], T],
    particles: Float[Array, "n dim"],
    problem: Problem,
    key: Array | None,
) -> T:
    """Apply `function(x, problem)` to every particle; with a key, to an estimate of a target that offers such."""
    density = problem.logdensity_fn
    if key is None or not isinstance(density, AbstractStochasticDensity):
        return problem.spread.map(lambda x: function(x, problem), particles)
    if density.per_particle:
        keys = split(key, len(particles))
        return problem.spread.map(lambda x, key: function(x, problem.estimated(key)), particles, keys)
    problem = problem.estimated(key)
    return problem.spread.map(lambda x: function(x, problem), particles)


def evaluate_target(particles: Float[Array, "n dim"], problem: Problem, key: Array | None = None) -> Population:
    """Evaluate the target alone, for methods that follow no path: the time derivative is 0.

    With a key a stochastic target is estimated.
    """
    values, scores = map_particles(
        lambda x, problem: jax.value_and_grad(problem.log_target)(x), particles, problem, key
    )
    return Population.of(particles, values, scores, jnp.zeros_like(values))
