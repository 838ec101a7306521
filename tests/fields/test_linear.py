"""Linear fields: the residual that least squares see is that of the field."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from helpers import LINEAR_FIELDS, assert_close, normal_array, over, some_params
from pgps.density import Population
from pgps.fields import AbstractLinearField, Additive, Affine, Local, Quadratic
from pgps.fields.determinants import log_det_of_sum
from pgps.fields.linear import Axes, LinearParameters, Units

T = jnp.asarray(0.3)


def some_population(num: int, dim: int) -> Population:
    """Particles whose coordinates have locations and scales of their own, and scores."""
    particles = jnp.arange(dim) - 1.0 + (1.0 + jnp.arange(dim)) * normal_array(num, dim, seed=3)
    zeros = jnp.zeros(num)
    return Population.of(particles, zeros, normal_array(num, dim, seed=4), zeros)


@eqx.filter_jit
def residuals(field: AbstractLinearField, population: Population) -> tuple[Array, Array]:
    """What coefficients make of the features, and score . phi + div phi by autodiff."""
    params = field.observe(some_params(field, population.particles.shape[1]), population)

    def one(x: Array, score: Array) -> tuple[Array, Array]:
        apply = lambda x: field.apply(params, T, x)  # noqa: E731
        return field.features(params, x, score) @ params.coefficients, score @ apply(x) + jnp.trace(
            jax.jacfwd(apply)(x)
        )

    return jax.vmap(one)(population.particles, population.score)


@over("field", LINEAR_FIELDS)
@pytest.mark.usefixtures("x64")
def test_features_are_those_of_the_residual(field: AbstractLinearField):
    by_features, by_autodiff = residuals(field, some_population(12, 3))
    assert np.std(by_autodiff) > 0.1
    assert_close(by_features, by_autodiff)


@over("field", LINEAR_FIELDS)
@pytest.mark.usefixtures("x64")
def test_rows_are_the_features_of_each_particle(field: AbstractLinearField):
    population = some_population(12, 3)
    params = field.observe(some_params(field, 3), population)
    one_by_one = jax.vmap(lambda x, score: field.features(params, x, score), out_axes=1)
    arrays = (population.particles, population.score)
    assert_close(jax.jit(lambda: field.rows(params, *arrays))(), jax.jit(lambda: one_by_one(*arrays))())


@pytest.mark.usefixtures("x64")
def test_a_few_particles_have_principal_directions_of_length_one():
    """With fewer particles than coordinates they are found on the side of the particles."""
    field, population = Affine(full_up_to=2, symmetric_up_to=2, rank=3), some_population(6, 10)
    params = field.observe(field.init(jax.random.key(0), 10, jnp.float64), population)
    points = np.asarray(params.units.enter(population.particles))
    assert_close(params.basis.T @ params.basis, jnp.eye(3))
    # They hold as much of the variance as the leading singular values do.
    held = np.sum((points @ np.asarray(params.basis)) ** 2)
    assert held == pytest.approx(np.sum(np.linalg.svd(points)[1][:3] ** 2))


@pytest.mark.usefixtures("x64")
def test_principal_axes_are_units_in_which_particles_are_alike():
    particles = some_population(40, 3).particles @ normal_array(3, 3, seed=5) * jnp.array([1.0, 1e-3, 1e3])
    axes = Axes.of(particles)
    points, score, velocity = axes.enter(particles), normal_array(1, 3)[0], normal_array(1, 3, seed=1)[0]
    assert_close(jnp.mean(points, axis=0), jnp.zeros(3))
    assert_close(jnp.cov(points, rowvar=False, bias=True), jnp.eye(3))
    # Velocities leave as positions enter, and the product of a score and a velocity is the same in any units.
    assert_close(axes.enter(axes.location + axes.leave(velocity)), velocity)
    assert_close(axes.turn(score) @ velocity, score @ axes.leave(velocity))


def test_an_axis_without_length_is_finite():
    axes = Axes.of(jnp.stack([jnp.arange(8.0), jnp.arange(8.0), jnp.ones(8)], axis=1))
    assert all(np.all(np.isfinite(leaf)) for leaf in axes)


def test_too_few_particles_have_no_axes_of_their_own():
    field, population = Affine(), some_population(11, 3)
    units = field.observe(field.init(jax.random.key(0), 3, jnp.float32), population).units
    assert isinstance(units, Axes)
    assert_close(units.axes, jnp.diag(jnp.std(population.particles, axis=0)), 1e-5)


@over("field", LINEAR_FIELDS)
def test_fresh_fields_move_nothing(field: AbstractLinearField):
    x = jnp.ones(3)
    params = field.init(jax.random.key(0), 3, jnp.float32)
    assert not np.any(field.apply(params, T, x))
    assert field.stretch(params, T, x) == 0


@over("field", {"affine": Affine(), "additive": Additive(), "local": Local()})
def test_no_matrix_per_particle_in_many_dimensions(field: AbstractLinearField):
    """What `pgps.exact` chooses from: neither determinants nor stretches take N x D x D numbers."""
    num, dim = 20, 400
    params = field.init(jax.random.key(0), dim, jnp.float32)

    @jax.jit
    def both(particles: Array) -> tuple[Array, Array]:
        log_dets = jax.vmap(lambda x: field.log_det(params, T, x, jnp.asarray(0.1)))(particles)
        return log_dets, jax.vmap(lambda x: field.stretch(params, T, x))(particles)

    analysis = both.lower(jnp.zeros((num, dim))).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 4 * num * dim * dim / 4


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("num", [1, 2, 4, 6, 7])
def test_determinants_by_elimination_are_those_of_lapack(num: int):
    matrices = normal_array(50, num, num, seed=num)
    # One that needs its rows exchanged, and a singular one.
    matrices = jnp.concatenate([matrices, jnp.eye(num)[None, ::-1], jnp.ones((1, num, num))])
    columns = jnp.moveaxis(matrices - jnp.eye(num), 0, -1)
    log_dets = log_det_of_sum([list(row) for row in columns])
    assert_close(log_dets[:51], jnp.linalg.slogdet(matrices[:51])[1])
    assert log_dets[51] == (-jnp.inf if num > 1 else 0.0)


@pytest.mark.usefixtures("x64")
def test_determinants_of_many_quadratic_fields_are_those_of_autodiff():
    """In more dimensions than elimination is for."""
    field, x, dt = Quadratic(), normal_array(5, 8), jnp.asarray(0.1)
    params = field.observe(some_params(field, 8), some_population(40, 8))
    jacobians = jax.vmap(jax.jacfwd(lambda x: x + dt * field.apply(params, T, x)))(x)
    assert_close(field.log_dets(params, T, x, dt), jnp.linalg.slogdet(jacobians)[1])


CORNERS = jnp.asarray([[3.0, 3.0], [3.0, -3.0], [-3.0, 3.0], [-3.0, -3.0]])


def clusters_at(params: LinearParameters, places: Array) -> LinearParameters:
    zeros = jnp.zeros(len(places))
    return Local(4).observe(params, Population.of(places, zeros, places, zeros))


def farthest(params: LinearParameters, corners: Array) -> float:
    """How far a corner may be from the centre that is nearest to it."""
    assert isinstance(params.units, Units)
    centers = params.units.location + params.units.scale * params.basis.centers
    return float(jnp.max(jnp.min(jnp.linalg.norm(centers[:, None] - corners, axis=-1), axis=0)))


def four_clouds(order: np.ndarray) -> Array:
    """Thirty particles around each corner, in this order; a fresh start is at the 1st, 40th, 80th and 120th."""
    clouds = (CORNERS[:, None] + 0.1 * normal_array(4, 30, 2, seed=1)).reshape(-1, 2)
    return clouds[order]


@pytest.mark.usefixtures("x64")
def test_clusters_go_on_from_the_last_ones_in_any_units():
    params = Local(4).init(jax.random.key(0), 2, jnp.float64)
    spread_out = four_clouds(np.arange(120))
    found = clusters_at(params, spread_out)
    assert farthest(found, CORNERS) < 0.1
    # All that a fresh start has now is of one cloud: by itself it does not find the others.
    order = np.arange(120)
    order[[39, 79, 119]], order[[1, 2, 3]] = [1, 2, 3], [39, 79, 119]
    alike = four_clouds(order)
    assert farthest(clusters_at(params, alike), CORNERS) > 1
    moved = clusters_at(found, 4 * alike + 10)
    assert farthest(moved, 4 * CORNERS + 10) < 0.4


@pytest.mark.usefixtures("x64")
def test_clusters_that_were_lost_start_afresh():
    params = Local(4).init(jax.random.key(0), 2, jnp.float64)
    far = params._replace(basis=params.basis._replace(centers=100.0 + jnp.arange(8.0).reshape(4, 2)))
    assert farthest(clusters_at(far, four_clouds(np.arange(120))), CORNERS) < 0.1
