"""What every field must keep: its divergence and log-determinant are those of its Jacobian; and the MLP."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

from helpers import ESTIMATED_FIELDS, FIELDS, assert_close, normal_array, over, some_params
from pgps.density import Population
from pgps.fields import MLP, AbstractField, Affine, Selection, Zero
from pgps.fields.mlp import Layer, MLPParameters

DIM = 4
T = 0.3


def some_particles(dim: int = DIM, num: int = 6) -> Array:
    """Particles whose coordinates have locations and scales of their own."""
    return jnp.arange(dim) - 1.0 + (1.0 + jnp.arange(dim)) * normal_array(num, dim, seed=3)


def population_at(particles: Array) -> Population:
    """Particles with scores of some density."""
    zeros = jnp.zeros_like(particles[:, 0])
    return Population.of(particles, zeros, jnp.sin(particles), zeros)


def observed_params(field: AbstractField, dim: int = DIM) -> PyTree:
    """Parameters, after a look at the particles."""
    params, population = some_params(field, dim), population_at(some_particles(dim))
    if isinstance(field, Selection):
        # Its trainer lets every family look.
        seen = [family.observe(own, population) for family, own in zip(field.families, params.params, strict=True)]
        return params._replace(params=tuple(seen))
    return field.observe(params, population)


def matrices(params: MLPParameters) -> list[tuple[np.ndarray, np.ndarray]]:
    """(W, b) of each layer, as the paper writes them: W x + b."""
    hidden = [(np.asarray(layer.weight).T, np.asarray(layer.bias)) for layer in params.hidden]
    return [*hidden, (np.asarray(params.output.weight), np.asarray(params.output.bias))]


class Examined(NamedTuple):
    """All that a field says of the particles, and what autodiff says."""

    velocity: Array
    jacobian: Array
    told: tuple[Array, Array]
    told_by_default: tuple[Array, Array]
    divergence: Array
    log_det: Array
    stretch: Array


# The last step is so long that it turns space inside out: the determinant's modulus counts.
STEPS = (0.0, 1e-3, 0.3, -0.7, 20.0)


@eqx.filter_jit
def examine(field: AbstractField, params: PyTree, particles: Array) -> Examined:
    t, key = jnp.asarray(T), jax.random.key(0)

    def one(x: Array) -> Examined:
        apply = lambda x: field.apply(params, t, x)  # noqa: E731
        return Examined(
            apply(x),
            jax.jacrev(apply)(x),
            field.apply_and_divergence(params, t, x, key),
            AbstractField.apply_and_divergence(field, params, t, x, key),
            field.divergence(params, t, x),
            jax.vmap(lambda dt: field.log_det(params, t, x, dt))(jnp.array(STEPS)),
            field.stretch(params, t, x),
        )

    return jax.vmap(one)(particles)


@over("field", FIELDS)
@pytest.mark.usefixtures("x64")
def test_divergence_is_the_trace_of_the_jacobian(field: AbstractField):
    result = examine(field, observed_params(field), some_particles())
    trace = jnp.trace(result.jacobian, axis1=1, axis2=2)
    assert_close(result.told, (result.velocity, trace))
    assert_close(result.told_by_default, (result.velocity, trace))
    assert_close(result.divergence, trace)


@over("field", FIELDS | ESTIMATED_FIELDS)
@pytest.mark.usefixtures("x64")
def test_log_det_is_that_of_the_jacobian(field: AbstractField):
    result = examine(field, observed_params(field), some_particles())
    moves = np.eye(DIM) + np.asarray(STEPS)[:, None, None] * np.asarray(result.jacobian)[:, None]
    assert_close(result.log_det, jnp.asarray(np.log(np.abs(np.linalg.det(moves)))))


@over("field", FIELDS)
@pytest.mark.usefixtures("x64")
def test_many_particles_at_once_are_as_one_by_one(field: AbstractField):
    """Members may replace what `AbstractField` does particle by particle."""
    params, particles, key = observed_params(field), some_particles(), jax.random.key(0)
    t, dt = jnp.asarray(T), jnp.asarray(STEPS[2])

    def told_by(kind: type[AbstractField]) -> tuple:
        flows = kind.flows(field, params, t, particles, key)
        return flows, kind.log_dets(field, params, t, particles, dt), kind.stretches(field, params, t, particles)

    one_by_one = jax.jit(lambda: told_by(AbstractField))()
    assert_close(jax.jit(lambda: told_by(type(field)))(), one_by_one)


@over("field", FIELDS)
@pytest.mark.usefixtures("x64")
def test_stretch_bounds_the_jacobian(field: AbstractField):
    """In the units that the field works in, those of the particles for linear ones."""
    params = observed_params(field)
    result = examine(field, params, some_particles())
    in_use = params.params[int(params.choice)] if isinstance(field, Selection) else params
    units = np.eye(DIM)
    if hasattr(in_use, "units"):
        units = np.asarray(jax.jacfwd(in_use.units.enter)(jnp.zeros(DIM)))
    norms = np.linalg.norm(units @ np.asarray(result.jacobian) @ np.linalg.inv(units), ord=2, axis=(1, 2))
    assert np.all(np.asarray(result.stretch) >= norms - 1e-10)


def test_the_log_det_contract_meets_negative_determinants():
    field = FIELDS["mlp"]
    jacobian = np.asarray(examine(field, observed_params(field), some_particles()).jacobian)
    assert np.any(np.linalg.det(np.eye(DIM) + STEPS[-1] * jacobian) < 0)


@over("field", FIELDS | ESTIMATED_FIELDS)
def test_field_keeps_shapes_and_dtypes(field: AbstractField):
    def run(key: Array, particles: Array) -> tuple[PyTree, PyTree, tuple[Array, Array]]:
        params = field.init(key, 3, jnp.float32)
        observed = field.observe(params, population_at(particles))
        return params, observed, field.apply_and_divergence(observed, jnp.asarray(T), particles[0], key)

    params, observed, told = eqx.filter_eval_shape(run, jax.random.key(0), jnp.ones((5, 3)))
    assert [(leaf.shape, leaf.dtype) for leaf in told] == [((3,), jnp.float32), ((), jnp.float32)]
    assert jax.tree.structure(observed) == jax.tree.structure(params)
    numbers = [leaf for leaf in jax.tree.leaves((params, observed)) if not jnp.issubdtype(leaf.dtype, jnp.integer)]
    assert all(leaf.dtype == jnp.float32 for leaf in numbers)


@pytest.mark.parametrize("width", [2, DIM, 9])
@pytest.mark.usefixtures("x64")
def test_one_hidden_layer_takes_the_smaller_side(width: int, monkeypatch: pytest.MonkeyPatch):
    field = MLP(width)
    params, x, dt = observed_params(field), some_particles()[0], 0.3
    sides = []
    slogdet = jnp.linalg.slogdet
    monkeypatch.setattr(jnp.linalg, "slogdet", lambda matrix: (sides.append(len(matrix)), slogdet(matrix))[1])
    value = jax.jit(field.log_det)(params, jnp.asarray(T), x, jnp.asarray(dt))
    assert sides == [min(width, DIM)]
    (W1, b1), (W2, _) = matrices(params)
    hidden = 1 / (1 + np.exp(-(W1 @ x + b1)))
    G = np.diag(hidden * (1 - hidden))
    assert_close(value, jnp.asarray(np.linalg.slogdet(np.eye(DIM) + dt * W2 @ G @ W1)[1]))
    assert_close(value, jnp.asarray(np.linalg.slogdet(np.eye(width) + dt * G @ W1 @ W2)[1]))


@pytest.mark.usefixtures("x64")
def test_sigmoid_network_of_appendix_b():
    field = MLP(5)
    params, particles = observed_params(field), some_particles()
    velocity, divergence = examine(field, params, particles).told
    (W1, b1), (W2, b2) = matrices(params)
    for x, phi, div in zip(np.asarray(particles), velocity, divergence, strict=True):
        x_h = 1 / (1 + np.exp(-(W1 @ x + b1)))
        x_g = x_h * (1 - x_h)
        assert_close(phi, jnp.asarray(W2 @ x_h + b2))
        assert_close(div, jnp.asarray(np.trace(W2 @ np.diag(x_g) @ W1)))
        assert_close(div, jnp.asarray(np.sum(W2 * W1.T * (np.ones((DIM, 1)) * x_g[None, :]))))


@pytest.mark.usefixtures("x64")
def test_deeper_network():
    field = MLP(3, depth=2, activation=jnp.tanh)
    params, particles = observed_params(field), some_particles()
    x = particles[0]
    (W1, b1), (W2, b2), (W3, b3) = matrices(params)
    first = np.tanh(W1 @ x + b1)
    second = np.tanh(W2 @ first + b2)
    jacobian = W3 @ np.diag(1 - second**2) @ W2 @ np.diag(1 - first**2) @ W1
    velocity, divergence = examine(field, params, particles).told
    assert_close((velocity[0], divergence[0]), (jnp.asarray(W3 @ second + b3), jnp.asarray(np.trace(jacobian))))


@over("field", ESTIMATED_FIELDS)
@pytest.mark.usefixtures("x64")
def test_hutchinsons_estimate_is_unbiased(field: AbstractField):
    params, x = observed_params(field), some_particles()[0]
    result = examine(field, params, some_particles())
    trace = float(jnp.trace(result.jacobian[0]))
    keys = jax.random.split(jax.random.key(11), 10_000)
    estimate = jax.vmap(lambda key: field.apply_and_divergence(params, jnp.asarray(T), x, key))
    velocities, divergences = jax.jit(estimate)(keys)
    assert_close(velocities[0], result.velocity[0])
    # Four standard errors of the mean of independent estimates, each with its own key.
    error = float(jnp.std(divergences)) / np.sqrt(len(keys))
    assert error > 0
    assert abs(float(jnp.mean(divergences)) - trace) < 4 * error


@pytest.mark.usefixtures("x64")
def test_hutchinsons_variance_falls_with_the_probes():
    def spread(num_probes: int) -> float:
        field = MLP(5, depth=2, num_probes=num_probes)
        params, x = observed_params(field), some_particles()[0]
        estimate = jax.jit(jax.vmap(lambda key: field.divergence(params, jnp.asarray(T), x, key)))
        return float(jnp.var(estimate(jax.random.split(jax.random.key(2), 4000))))

    # Four standard errors. Each variance has a relative one of sqrt(2 / 4000), if draws were Gaussian.
    assert spread(1) / spread(8) == pytest.approx(8, rel=4 * np.sqrt(2 * 2 / 4000))


@over("field", ESTIMATED_FIELDS)
@pytest.mark.usefixtures("x64")
def test_hutchinsons_estimate_is_exact_in_one_dimension(field: AbstractField):
    params, particles = observed_params(field, 1), some_particles(1)
    result = examine(field, params, particles)
    assert_close(result.told, (result.velocity, result.jacobian[:, 0, 0]))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.usefixtures("x64")
def test_standardised_network_sees_standardised_inputs(depth: int):
    field, plain = MLP(5, depth, standardise=True), MLP(5, depth)
    params, particles = observed_params(field), some_particles()
    location, scale = np.mean(particles, axis=0), np.std(particles, axis=0)
    assert_close((params.location, params.scale), (jnp.asarray(location), jnp.asarray(scale)))
    bare = params._replace(location=None, scale=None)
    result = examine(field, params, particles)
    assert_close(result.velocity, examine(plain, bare, (particles - location) / scale).velocity)

    (W1, b1), *_ = matrices(bare)
    first = Layer(jnp.asarray(W1 / scale).T, jnp.asarray(b1 - W1 @ (location / scale)))
    assert_close(result, examine(plain, bare._replace(hidden=(first, *bare.hidden[1:])), particles))


def test_standardisation_is_not_trained():
    field = MLP(5, standardise=True)
    params = observed_params(field)
    total = lambda params: jnp.sum(field.apply(params, jnp.asarray(T), jnp.ones(DIM)))  # noqa: E731
    gradient = jax.grad(total)(params)
    assert not np.any(gradient.location)
    assert not np.any(gradient.scale)
    assert np.any(gradient.hidden[0].weight)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1000.3])
def test_constant_coordinates_are_not_blown_up(constant: float):
    field = MLP(8, standardise=True)
    particles = normal_array(1000, 3).at[:, 1].set(constant)
    params = field.observe(field.init(jax.random.key(0), 3, jnp.float32), population_at(particles))
    velocity, divergence = examine(field, params, particles).told
    # Weights lie within 1/sqrt(3) and 1/sqrt(8), and the sigmoid's slope below 1/4. With scales near 1 the
    # divergence is below 8 * 3 / (4 sqrt(24)) = 1.2; rounding in the mean of a constant is not a scale.
    assert np.all(np.abs(divergence) < 1.3)
    assert np.all(np.isfinite(velocity))


def test_plain_network_does_not_look_at_the_particles():
    field = MLP(5)
    params = field.init(jax.random.key(0), DIM, jnp.float32)
    assert params.location is None
    assert field.observe(params, population_at(some_particles())) is params


@pytest.mark.parametrize("depth", [1, 2])
def test_initial_weights_are_uniform_as_in_pytorch(depth: int):
    dim, width = 16, 400
    params = MLP(width, depth).init(jax.random.key(4), dim, jnp.float32)
    fan_ins = [dim, *[width] * depth]
    fan_outs = [*fan_ins[1:], dim]
    assert [W.shape for W, _ in matrices(params)] == list(zip(fan_outs, fan_ins, strict=True))
    assert [b.shape for _, b in matrices(params)] == [(fan_out,) for fan_out in fan_outs]
    for layer, fan_in in zip(matrices(params), fan_ins, strict=True):
        for leaf in layer:
            draws = np.sqrt(fan_in) * leaf.ravel()
            assert np.all(np.abs(draws) <= 1)
            # Four standard errors. A uniform law on [-1, 1] has variance 1/3 and fourth moment 1/5.
            assert abs(draws.mean()) < 4 * np.sqrt(1 / 3 / len(draws))
            assert abs(np.mean(draws**2) - 1 / 3) < 4 * np.sqrt((1 / 5 - 1 / 9) / len(draws))


def test_layers_are_drawn_independently():
    params = MLP(9, depth=2).init(jax.random.key(4), 9, jnp.float32)
    flat = [np.ravel(leaf)[:9] for leaf in jax.tree.leaves(params)]
    assert all(not np.allclose(a, b) for i, a in enumerate(flat) for b in flat[:i])


def test_zero_moves_nothing():
    field = Zero()
    velocity, divergence = field.apply_and_divergence(None, jnp.asarray(T), jnp.ones(3), jax.random.key(0))
    assert not np.any(velocity)
    assert divergence == 0
    assert field.log_det(None, jnp.asarray(T), jnp.ones(3), jnp.asarray(0.5)) == 0
    assert field.init(jax.random.key(0), 3, jnp.float32) is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"width": 0}, ValueError, "width must be at least 1, got 0; "),
        ({"width": 2.5}, TypeError, "width must be a whole number, got 2.5; "),
        ({"width": True}, TypeError, "width must be a whole number, got True; "),
        ({"depth": 0}, ValueError, "depth must be at least 1, got 0; "),
        ({"depth": "two"}, TypeError, "depth must be a whole number, got 'two'; "),
        ({"activation": "tanh"}, TypeError, "activation must be a function .*, got 'tanh'; "),
        ({"depth": 2, "num_probes": 0}, ValueError, "num_probes must be at least 1, got 0; "),
        ({"num_probes": 3}, ValueError, "num_probes must be None for depth 1, got 3; "),
    ],
)
def test_bad_arguments(arguments: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        MLP(**arguments)


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("families", "error", "message"),
    [
        ((), ValueError, "families must hold at least one field, got none; "),
        ((Affine(), MLP()), TypeError, "families must .*MLP.*; "),
    ],
)
def test_bad_families(families: tuple, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        Selection(families)
