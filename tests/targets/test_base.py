"""What every target keeps: its density, its draws and its log evidence agree, and its slope is finite everywhere."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from helpers import assert_close, over
from pgps import Normal
from pgps.targets import (
    AbstractMixture,
    AbstractTarget,
    Funnel,
    GaussianMixture,
    ManyWell,
    StudentMixture,
    false_mode,
    forty_gaussians,
    funnel,
    many_well,
    mode_discovery,
    nine_gaussians,
    student_t_mixture,
    two_modes,
    weight_recovery,
)

NUM_DRAWS = 20_000


def uneven_means() -> Array:
    return jnp.array([[0.0, 3.0, -6.0], [9.0, 1.5, 0.0], [-12.0, 6.0, 6.0]])


# A new problem is one line here; a target that no problem uses is one line below.
PROBLEMS: dict[str, Callable[[], tuple[AbstractTarget, Normal]]] = {
    "two-modes": two_modes,
    "mode-discovery": mode_discovery,
    "false-mode": false_mode,
    "weight-recovery": lambda: weight_recovery(jax.random.key(3)),
    "nine-gaussians": nine_gaussians,
    "forty-gaussians": forty_gaussians,
    "forty-gaussians-50": lambda: forty_gaussians(50),
    "student-t-mixture": student_t_mixture,
    "funnel": funnel,
    "many-well": many_well,
}
TARGETS: dict[str, Callable[[], AbstractTarget]] = {
    **{name: lambda make=make: make()[0] for name, make in PROBLEMS.items()},
    "uneven-gaussians": lambda: GaussianMixture(jnp.array([0.2, 0.5, 0.3]), uneven_means(), jnp.array([0.3, 1.0, 0.6])),
    "uneven-students": lambda: StudentMixture(
        jnp.array([0.2, 0.5, 0.3]), uneven_means(), jnp.array([0.3, 1.0, 0.6]), 4.5
    ),
    "narrow-funnel": lambda: Funnel(3, 1.2),
    "one-well": lambda: ManyWell(1),
}
MIXTURES = {name: make for name, make in TARGETS.items() if isinstance(make(), AbstractMixture)}
# A funnel's neck is too narrow for a grid; SciPy's normal laws check its density.
ON_A_GRID = {name: make for name, make in TARGETS.items() if make().dim <= 2}
WITH_ARRAYS = {name: make for name, make in TARGETS.items() if jax.tree.leaves(make())}


class Draws(NamedTuple):
    x: np.ndarray
    values: np.ndarray
    scores: np.ndarray


@functools.cache
def draws_of(make: Callable[[], AbstractTarget]) -> Draws:
    @eqx.filter_jit
    def draw(target: AbstractTarget, key: Array) -> tuple[Array, Array, Array]:
        x = target.sample(key, NUM_DRAWS)
        return x, *jax.vmap(jax.value_and_grad(target))(x)

    return Draws(*map(np.asarray, draw(make(), jax.random.key(1))))


def assert_mean(values: np.ndarray, mean: np.ndarray | float) -> None:
    """The mean of independent values (first axis) lies within four of its standard errors of the truth."""
    error = values.std(axis=0) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(values.mean(axis=0) - mean), 4 * error)


@over("make", TARGETS)
@pytest.mark.usefixtures("x64")
def test_shapes_in_double_precision(make: Callable[[], AbstractTarget]):
    target = make()
    x = eqx.filter_eval_shape(lambda target: target.sample(jax.random.key(0), 3), target)
    value = eqx.filter_eval_shape(target, jnp.zeros(target.dim))
    assert (x.shape, x.dtype) == ((3, target.dim), jnp.float64)
    assert (value.shape, value.dtype) == ((), jnp.float64)


@over("make", TARGETS)
def test_shapes_in_single_precision(make: Callable[[], AbstractTarget]):
    target, draws = make(), draws_of(make)
    assert (draws.x.shape, draws.x.dtype) == ((NUM_DRAWS, target.dim), np.float32)
    assert (draws.values.shape, draws.values.dtype) == ((NUM_DRAWS,), np.float32)


@over("make", PROBLEMS)
def test_the_initial_law_has_the_targets_shape(make: Callable[[], tuple[AbstractTarget, Normal]]):
    target, initial = make()
    assert initial.sample(jax.random.key(0)).shape == (target.dim,)


@over("make", ON_A_GRID)
@pytest.mark.usefixtures("x64")
def test_the_density_integrates_to_the_evidence(make: Callable[[], AbstractTarget]):
    # Trapezoids in u, x = sinh(u), out to |x| = 4e3, where t components with 2 degrees of freedom have 1e-7 left.
    target = make()
    u, step = jnp.linspace(-9.0, 9.0, 901, retstep=True)
    x, weights = jnp.sinh(u), jnp.cosh(u) * step

    @jax.jit
    def integral(target: AbstractTarget) -> Array:
        def line(first: Array) -> Array:
            density = lambda last: jnp.exp(target(jnp.append(first, last)))  # noqa: E731
            return weights @ jax.vmap(density)(x)

        return line(jnp.zeros(0)) if target.dim == 1 else weights @ jax.lax.map(line, x[:, None])

    assert float(jnp.log(integral(target))) == pytest.approx(target.log_evidence, abs=1e-6)


def inside(target: AbstractTarget) -> Normal:
    """A Gaussian that is narrower than the target around a point of high density."""
    match target:
        case AbstractMixture():
            heaviest = jnp.argmax(target.weights)
            return Normal(target.means[heaviest], 0.9 * target.scales[heaviest])
        case Funnel():
            return Normal(0.0, jnp.full(target.dim, 0.9).at[0].set(0.2))
        case ManyWell():
            return Normal(
                jnp.tile(jnp.array([1.75, 0.0]), target.num_wells), jnp.tile(jnp.array([0.18, 0.9]), target.num_wells)
            )
    raise NotImplementedError(target)


@over("make", TARGETS)
def test_the_draws_have_the_density_and_the_evidence(make: Callable[[], AbstractTarget]):
    # For every normalised density q that vanishes where the target does, E_p[q(x) Z / exp(log-density)] = 1.
    target, draws = make(), draws_of(make)
    log_ratios = np.asarray(jax.vmap(inside(target).logdensity)(draws.x)) + target.log_evidence - draws.values
    ratios = np.exp(log_ratios.astype(float))
    assert ratios.std() / np.sqrt(NUM_DRAWS) < 0.05
    assert_mean(ratios, 1.0)


@over("make", TARGETS)
def test_the_mean_score_is_zero(make: Callable[[], AbstractTarget]):
    assert_mean(draws_of(make).scores.astype(float), 0.0)


@over("make", TARGETS)
def test_values_and_slopes_are_finite_far_away(make: Callable[[], AbstractTarget]):
    target = make()
    axes = np.concatenate([np.eye(target.dim), np.full((1, target.dim), target.dim**-0.5)])
    x = jnp.asarray(1e4 * np.concatenate([axes, -axes]), jnp.float32)
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(target)))(x)
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(scores))
    # They point back.
    assert np.all(np.sum(np.asarray(x, float) * np.asarray(scores, float), axis=1) < 0)


@over("make", TARGETS)
def test_values_and_slopes_are_finite_at_the_modes(make: Callable[[], AbstractTarget]):
    target = make()
    modes = target.means if isinstance(target, AbstractMixture) else jnp.zeros((1, target.dim))
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(target)))(modes)
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(scores))


@over("make", MIXTURES)
def test_mode_masses(make: Callable[[], AbstractMixture]):
    mixture, x = make(), draws_of(make).x
    weights, scales = np.asarray(mixture.weights, float), np.asarray(mixture.scales)
    error = 4 * np.sqrt(weights * (1 - weights) / NUM_DRAWS)
    # The mean of the components' posterior weights, d ln p / d ln w, is w, also where components overlap.
    log_gradient = jax.vmap(jax.grad(lambda mixture, x: mixture(x)), (None, 0))
    posterior = weights * np.asarray(jax.jit(log_gradient)(mixture, x).weights, float)
    np.testing.assert_array_less(np.abs(posterior.mean(axis=0) - weights), error)
    # Where half the gap between modes is 4 widths or more, less than 4e-5 of a Gaussian is nearest to another's mean.
    gaps = np.linalg.norm(mixture.means[:, None] - mixture.means, axis=-1) + 1e9 * np.eye(len(weights))
    if isinstance(mixture, GaussianMixture) and np.all(gaps / 2 >= 4 * scales[:, None]):
        shares = np.bincount(mixture.nearest_mode(jnp.asarray(x)), minlength=len(weights)) / NUM_DRAWS
        np.testing.assert_array_less(np.abs(shares - weights), error + 4e-5)


@over("make", WITH_ARRAYS)
def test_targets_stack(make: Callable[[], AbstractTarget]):
    first = make()
    second = jax.tree.map(lambda leaf: leaf[::-1] if leaf.ndim == 1 else 1.1 * leaf, first)
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, second)
    x, key = jnp.linspace(-1.0, 2.0, first.dim), jax.random.key(0)

    def facts(target: AbstractTarget) -> tuple:
        return target(x), jax.grad(target)(x), target.sample(key, 2), target.log_evidence, target.dim

    stacked = jax.jit(jax.vmap(facts))(stack)
    for i, target in enumerate([first, second]):
        assert_close([leaf[i] for leaf in stacked], [jnp.asarray(fact) for fact in facts(target)], 1e-4)


@over("make", WITH_ARRAYS)
def test_new_numbers_need_no_compilation(make: Callable[[], AbstractTarget]):
    num_traces = 0

    @eqx.filter_jit
    def value(target: AbstractTarget, x: Array) -> Array:
        nonlocal num_traces
        num_traces += 1
        return target(x)

    target = make()
    for factor in (1.0, 1.1):
        value(jax.tree.map(lambda leaf, factor=factor: factor * leaf, target), jnp.zeros(target.dim))
    assert num_traces == 1
