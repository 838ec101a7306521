"""The members of every family, which the contract tests run over, and a few things that tests share.

A new path, field, trainer, stepper, adjustment, method, law or bijector is one line in its registry. Settings are
small, so that a test over a whole family is fast. Laws are made when asked for: they have the test's dtype.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, PyTree

from pgps import (
    Normal,
    Uniform,
    adjustments,
    bijectors,
    exact,
    fields,
    initial,
    methods,
    paper,
    paths,
    steppers,
    trainers,
    training_free,
)
from pgps.adjustments.widths import Widths, refreshed, width_functions
from pgps.density import Population, Problem

# Data sets are not part of the repository.
needs_files = pytest.mark.skipif("PGPS_DATA_DIR" not in os.environ, reason="PGPS_DATA_DIR names no data")

PATHS: dict[str, paths.AbstractPath] = {
    "geometric": paths.Geometric(),
    "shrinkage-none": paths.LogWeightedShrinkage(),
    "shrinkage-paper": paths.LogWeightedShrinkage(1.0, 0.8, center=0.0),
    "shrinkage-alpha": paths.LogWeightedShrinkage(0.4, 1.0),
    "shrinkage-beta": paths.LogWeightedShrinkage(0.0, 0.1),
    "shrinkage-center": paths.LogWeightedShrinkage(0.7, 0.3, center=-1.3),
    "shrinkage-cautious": paths.CautiousShrinkage(1.0, 0.3),
}

# Fields that least squares fit.
LINEAR_FIELDS: dict[str, fields.AbstractLinearField] = {
    "affine": fields.Affine(),
    "affine-symmetric": fields.Affine(full_up_to=2),
    "affine-low-rank": fields.Affine(full_up_to=2, symmetric_up_to=2, rank=2),
    "additive": fields.Additive(4),
    "local": fields.Local(3),
    "quadratic": fields.Quadratic(),
    "quadratic-squares": fields.Quadratic(full_up_to=2),
    "kernel": fields.Kernel(5),
}
# Fields whose divergence is exact; ESTIMATED_FIELDS have one that is right on average.
FIELDS: dict[str, fields.AbstractField] = {
    "zero": fields.Zero(),
    "mlp": fields.MLP(7),
    "mlp-narrow": fields.MLP(2),
    "mlp-tanh": fields.MLP(5, activation=jnp.tanh),
    "mlp-softplus": fields.MLP(3, activation=jax.nn.softplus),
    "mlp-gelu": fields.MLP(6, activation=jax.nn.gelu),
    "mlp-standardised": fields.MLP(7, standardise=True),
    "mlp-narrow-standardised": fields.MLP(2, standardise=True),
    "mlp-deep": fields.MLP(5, depth=3),
    "mlp-deep-tanh": fields.MLP(3, depth=2, activation=jnp.tanh, standardise=True),
    **LINEAR_FIELDS,
    "selection": fields.Selection((fields.Affine(), fields.Local(2))),
}
ESTIMATED_FIELDS: dict[str, fields.AbstractField] = {
    "hutchinson": fields.MLP(5, depth=2, num_probes=2),
    "hutchinson-standardised": fields.MLP(5, depth=3, activation=jnp.tanh, standardise=True, num_probes=1),
}

# Trainers of any field; trainers.LeastSquares fits LINEAR_FIELDS and selections of them.
TRAINERS: dict[str, trainers.AbstractTrainer] = {
    "none": trainers.NoTraining(),
    "adam": trainers.Gradient(max_steps=5),
    "adam-variance": trainers.Gradient(max_steps=5, loss=trainers.variance),
    "adam-drop": trainers.Gradient(1e-1, 5, drop=trainers.LearningRateDrop(100.0, 1e-2)),
    "adam-held-out": trainers.Gradient(max_steps=5, held_out=0.25),
    "sgd-momentum": trainers.Gradient(1e-3, 5, optimizer=partial(optax.sgd, momentum=0.9)),
}

STEPPERS: dict[str, steppers.AbstractStepper] = {
    "fixed": steppers.Fixed(0.1),
    "particle-step": steppers.ParticleStep(0.5, 0.2),
    "ladder": steppers.Ladder((0.1, 0.35, 0.8, 1.0)),
    "conditional-ess": steppers.ConditionalESS(0.8, 0.4),
}

ADJUSTMENTS: dict[str, adjustments.AbstractAdjustment] = {
    "none": adjustments.NoAdjustment(),
    "langevin": adjustments.Langevin(1e-2, 3),
    "langevin-every": adjustments.Langevin(1e-2, 3, every=0.3),
    "langevin-final": adjustments.Langevin(1e-2, 0, final_steps=4),
    "mala": adjustments.MALA(1e-1, 3),
    "mala-fixed": adjustments.MALA(1e-1, 3, target_acceptance=None),
    "hmc": adjustments.HMC(2e-1, 4, 2),
    "mala-local": adjustments.MALA(3e-1, 2, precondition=True, mixing=0.3, max_steps=4),
    "hmc-local": adjustments.HMC(5e-1, 2, precondition=True, jitter=0.5, mixing=0.3, max_steps=4),
}

METHODS: dict[str, methods.AbstractMethod] = {
    "exact": exact(conditional_ess=0.9, scouting=None),
    "paper": paper(0.5, 0.8, max_dt=0.1, width=8, max_training_steps=5, threshold=0, langevin_steps=2),
    "training-free": training_free(0.0, 0.5, dt=0.1, langevin_steps=3, final_langevin_steps=5),
    "langevin": methods.Langevin(1e-2, 20),
    "mala": methods.MALA(1e-1, 20),
    "mala-adapted": methods.MALA(1e-1, 20, target_acceptance=0.6),
    "sgld": methods.SGLD(1e-2, 20),
    "sgld-one-chain": methods.SGLD(1e-2, 20, num_chains=1, decay=0.3),
    "annealed-langevin": methods.AnnealedLangevin(1e-2, 20, 5.0, 4),
    "svgd": methods.SVGD(1e-1, 20),
    "svgd-fixed": methods.SVGD(1e-1, 20, bandwidth=0.5),
    "pfg": methods.PFG(1e-2, 10, fields.MLP(8), first_training_steps=20),
    "pfg-preconditioned": methods.PFG(1e-2, 10, fields.MLP(8), first_training_steps=20, precondition=True),
    "smc": methods.TemperedSMC(moves=adjustments.MALA(num_steps=2)),
    "smc-hmc-ladder": methods.TemperedSMC(steppers.Ladder((0.2, 0.5, 1.0)), adjustments.HMC()),
}

LAWS: dict[str, Callable[[], initial.AbstractLaw]] = {
    "normal": lambda: Normal(jnp.array([0.5, -1.0, 2.0]), jnp.array([0.7, 1.5, 3.0])),
    "normal-scalar": lambda: Normal(1.0, 2.0),
    "normal-tree": lambda: Normal({"b": jnp.asarray(0.5), "w": jnp.arange(4.0).reshape(2, 2)}, 1.5),
    "full-normal": lambda: initial.FullNormal(jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.9], [0.9, 0.5]])),
    "uniform": lambda: Uniform(jnp.array([-1.0, 0.0]), jnp.array([3.0, 0.5])),
    "uniform-tree": lambda: Uniform({"b": jnp.asarray(-2.0), "w": jnp.zeros(3)}, 4.0),
    "custom": lambda: initial.Custom(
        lambda key: 2.0 + jax.random.normal(key, (2,)),
        lambda x: jnp.sum(jax.scipy.stats.norm.logpdf(x, 2.0)),
    ),
}

# Bijectors of vectors of three unconstrained numbers.
BIJECTORS: dict[str, bijectors.AbstractBijector] = {
    "identity": bijectors.Identity(),
    "positive": bijectors.Positive(),
    "interval": bijectors.Interval(-1.5, 4.0),
    "interval-array": bijectors.Interval(np.array([-2.0, 0.0, 1.0]), np.array([-1.0, 0.5, 30.0])),
    "simplex": bijectors.Simplex(),
    "ordered": bijectors.Ordered(),
}
# What the values of each obey.
CONSTRAINTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda y: np.isfinite(y),
    "positive": lambda y: y > 0,
    "interval": lambda y: (y > -1.5) & (y < 4.0),
    "interval-array": lambda y: (y > np.array([-2.0, 0.0, 1.0])) & (y < np.array([-1.0, 0.5, 30.0])),
    "simplex": lambda y: (y > 0) & (y < 1) & (np.abs(y.sum(axis=-1, keepdims=True) - 1) < 1e-12) & (y.shape[-1] == 4),
    "ordered": lambda y: np.diff(y, axis=-1) > 0,
}


def over(name: str, registry: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test with every member of a registry."""
    return pytest.mark.parametrize(name, list(registry.values()), ids=list(registry))


def bumpy(particle: Any) -> Array:
    """A smooth log-density on any pytree, with no symmetry that could hide a wrong sign."""
    x = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(particle)])
    k = jnp.arange(1, x.size + 1)
    return -0.5 * jnp.sum((x - 0.3 * k) ** 2 / (0.5 + 0.1 * k)) + jnp.sum(jnp.sin(1.3 * x + k)) + 0.2 * x[0] * x[-1]


def vector_problem(logdensity_fn: Callable[[Any], Array] = bumpy, dim: int = 3) -> Problem:
    """From a Gaussian, whose mean is not 0, to a density on vectors."""
    return Problem.of(logdensity_fn, Normal(jnp.linspace(-0.5, 0.9, dim), jnp.linspace(0.8, 1.6, dim)))


def tree_problem(logdensity_fn: Callable[[Any], Array] = bumpy) -> Problem:
    """The same on a dict of a scalar and a matrix."""
    return Problem.of(logdensity_fn, Normal({"b": jnp.asarray(0.4), "w": jnp.full((2, 2), -0.6)}, 1.2))


def box_problem(logdensity_fn: Callable[[Any], Array] = bumpy) -> Problem:
    """From the uniform law on [-1, 1]^2."""
    return Problem.of(logdensity_fn, Uniform(-1.0, 1.0, shape=(2,)))


PROBLEMS: dict[str, Callable[[], Problem]] = {"vector": vector_problem, "tree": tree_problem}


def normal_array(*shape: int, seed: int = 0) -> Array:
    """Standard normal numbers in the test's dtype; NumPy's need no compilation."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), float)


Component = TypeVar("Component")


def as_arrays(component: Component) -> Component:
    """Numbers become arrays, as in `pgps.sample`: members that differ in them alone share one program."""
    is_number = lambda leaf: isinstance(leaf, int | float) and not isinstance(leaf, bool)  # noqa: E731
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_number(leaf) else leaf, component)


@eqx.filter_jit
def path_values(
    evaluate: Callable[..., paths.PathValue],
    path: Any,
    times: Array,
    particles: Array,
    problem: Problem,
) -> paths.PathValue:
    """`evaluate(path, t, x, problem)` for all times (first axis) and particles (second axis)."""
    over_particles = jax.vmap(lambda t, x: evaluate(path, t, x, problem), (None, 0))
    return jax.vmap(over_particles, (0, None))(times, particles)


_evaluate = eqx.filter_jit(paths.evaluate)


def path_population(
    problem: Problem, t: float = 0.4, path: paths.AbstractPath | None = None, particles: Array | None = None
) -> Population:
    """Particles, sixteen around the initial law's mean if none are given, evaluated along a path."""
    path = paths.LogWeightedShrinkage(0.3, 0.6) if path is None else path
    particles = problem.center + normal_array(16, problem.structure.dim) if particles is None else particles
    return _evaluate(as_arrays(path), jnp.asarray(t, particles.dtype), particles, problem)


def some_params(field: fields.AbstractField, dim: int) -> PyTree:
    """Parameters of a field, large enough to be far from linear."""
    shapes = eqx.filter_eval_shape(lambda: field.init(jax.random.key(0), dim, jnp.result_type(float)))
    leaves, treedef = jax.tree.flatten(shapes)
    is_index = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.integer)  # noqa: E731
    drawn = [
        jnp.ones(leaf.shape, leaf.dtype) if is_index(leaf) else normal_array(*leaf.shape, seed=i)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, drawn)


class HostDensity:
    """A Gaussian log-density that is computed by NumPy on the host, as Stan's are, and counts its calls.

    It has a reverse mode only: differentiating it forwards raises a TypeError.
    """

    def __init__(self, mean: float = 1.0, scale: float = 0.7):
        self.mean, self.scale = mean, scale
        self.values = self.gradients = 0
        self._call = jax.custom_vjp(self._value)
        self._call.defvjp(self._forward, lambda gradient, cotangent: (cotangent * gradient,))

    def __call__(self, x: Array) -> Array:
        """The log-density of one vector, up to a constant."""
        return self._call(x)

    def reset(self) -> None:
        """Forget the calls so far, once they have come in."""
        jax.effects_barrier()
        self.values = self.gradients = 0

    def _value(self, x: Array) -> Array:
        def host(x: Any) -> np.ndarray:
            self.values += int(np.prod(np.shape(x)[:-1]))
            return self._evaluate(np.asarray(x))[0]

        return jax.pure_callback(host, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="expand_dims")

    def _forward(self, x: Array) -> tuple[Array, Array]:
        def host(x: Any) -> tuple[np.ndarray, np.ndarray]:
            self.gradients += int(np.prod(np.shape(x)[:-1]))
            return self._evaluate(np.asarray(x))

        shapes = (jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype))
        return jax.pure_callback(host, shapes, x, vmap_method="expand_dims")

    def _evaluate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = (x - self.mean) / self.scale
        return (-0.5 * np.sum(z**2, axis=-1)).astype(x.dtype), (-z / self.scale).astype(x.dtype)


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Two pytrees agree to an absolute and relative tolerance."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_moments(draws: Any, mean: Any, variance: Any, num_errors: float = 4.0) -> None:
    """The mean and variance of independent draws (first axis) lie within some standard errors of the truth.

    The mean's standard error is sqrt(variance / n); the variance's is taken from the draws' fourth moment.
    """
    draws = np.asarray(draws, float)
    n = len(draws)
    mean, variance = np.broadcast_to(mean, draws.shape[1:]), np.broadcast_to(variance, draws.shape[1:])
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), num_errors * np.sqrt(variance / n))
    squares = (draws - mean) ** 2
    error = np.sqrt(np.var(squares, axis=0) / n)
    np.testing.assert_array_less(np.abs(squares.mean(axis=0) - variance), num_errors * error)


def assert_covariance(draws: Any, mean: Any, covariance: Any, num_errors: float = 4.0) -> None:
    """The mean and covariance of independent draws lie within some standard errors of the truth, by the draws' own."""
    draws, covariance = np.asarray(draws, float), np.asarray(covariance)
    n, centered = len(draws), draws - np.asarray(mean)
    np.testing.assert_array_less(np.abs(centered.mean(axis=0)), num_errors * np.sqrt(np.diagonal(covariance) / n))
    products = centered[:, :, None] * centered[:, None, :]
    error = products.std(axis=0) / np.sqrt(n)
    np.testing.assert_array_less(np.abs(products.mean(axis=0) - covariance), num_errors * error)


def local_widths(population: Population) -> Widths:
    """Widths that vary from place to place, fitted to all particles."""
    return refreshed(width_functions(population), population, has_edge=False)


def counting(logdensity: Callable[[Array], Array]) -> tuple[Callable[[Array], Array], dict[str, int]]:
    """A log-density that counts its calls on the host, one for each particle, in `calls`."""
    calls = {"value": 0, "gradient": 0}

    def tally(kind, token):
        calls[kind] += 1
        return token

    def on_host(kind, x):
        token = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(lambda z: np.asarray(tally(kind, z)), token, x[0], vmap_method="sequential")

    @jax.custom_vjp
    def f(x):
        return logdensity(x) + 0 * on_host("value", x)

    def forward(x):
        value, gradient = jax.value_and_grad(logdensity)(x)
        return value + 0 * on_host("gradient", x), gradient

    f.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    return f, calls
