"""Particles as flat vectors and back, the two ends of a path, populations, and counts of evaluations."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import LAWS, METHODS, assert_close, box_problem, bumpy, normal_array, over, tree_problem
from pgps import Normal, adjustments, fields, methods, paths, steppers, trainers
from pgps.density import (
    AbstractStochasticDensity,
    Evaluations,
    Population,
    Problem,
    Structure,
    evaluate_target,
    map_particles,
    shape_of,
)


class Point(NamedTuple):
    x: Any
    rest: Any


TREES: dict[str, Any] = {
    "vector": np.arange(3.0),
    "scalar": np.array(2.5),
    "matrix": np.arange(6.0).reshape(2, 3),
    "dict": {"w": np.arange(4.0).reshape(2, 2), "b": np.array(-1.0)},
    "nested": Point(np.arange(2.0), [np.array(5.0), {"a": np.arange(3.0)}]),
    "with-none": (np.arange(2.0), None, np.array(3.0)),
}


def as_float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


class TestStructure:
    """A pytree of arrays as one vector."""

    @over("tree", TREES)
    def test_round_trip(self, tree: Any):
        particle = as_float32(tree)
        structure = Structure.of(particle)
        flat, back = jax.jit(
            lambda particle: (structure.ravel(particle), structure.unravel(structure.ravel(particle)))
        )(particle)
        assert flat.shape == (structure.dim,)
        np.testing.assert_array_equal(flat, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]))
        assert_close(back, particle, 0.0)
        assert [leaf.shape for leaf in jax.tree.leaves(back)] == [leaf.shape for leaf in jax.tree.leaves(particle)]

    @over("tree", TREES)
    def test_there_is_a_name_for_each_coordinate(self, tree: Any):
        structure = Structure.of(as_float32(tree))
        assert len(structure.names) == structure.dim
        assert len(set(structure.names)) == structure.dim

    def test_names_say_where_a_coordinate_is(self):
        names = lambda tree: Structure.of(as_float32(tree)).names  # noqa: E731
        assert names(TREES["vector"]) == ["x[0]", "x[1]", "x[2]"]
        assert names(TREES["scalar"]) == ["x"]
        assert names(TREES["matrix"]) == ["x[0,0]", "x[0,1]", "x[0,2]", "x[1,0]", "x[1,1]", "x[1,2]"]
        assert names(TREES["dict"]) == ["b", "w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]"]
        # A key that could be taken for something else is quoted.
        assert names({"a": np.zeros(1), "a[0]": np.zeros(())}) == ["a[0]", "['a[0]']"]
        assert names({0: np.zeros(1)}) == ["[0][0]"]
        assert names(TREES["nested"])[2:4] == [".rest[0]", ".rest[1]['a'][0]"]
        # The name of each coordinate leads to its value.
        tree = {"w": np.arange(4.0).reshape(2, 2), "b": np.array(-1.0)}
        for nested, scope in ((tree, tree), ([tree], {"x": [tree]})):
            flat = Structure.of(as_float32(nested)).ravel(as_float32(nested))
            paths = [name if nested is tree else f"x{name}" for name in names(nested)]
            assert [float(eval(path, dict(scope))) for path in paths] == flat.tolist()

    def test_it_can_be_read_off_shapes(self):
        shapes = {"a": jax.ShapeDtypeStruct((2,), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.float32)}
        assert Structure.of(shapes) == Structure.of({"a": jnp.zeros(2), "b": jnp.zeros(())})

    def test_one_dtype_holds_all_and_each_leaf_keeps_its_own(self):
        particle = {"a": jnp.ones(2, jnp.float16), "b": jnp.full((), 0.1, jnp.float32)}
        structure = Structure.of(particle)
        assert structure.dtype == jnp.float32
        assert structure.ravel(particle).dtype == jnp.float32
        back = structure.unravel(structure.ravel(particle))
        assert (back["a"].dtype, back["b"].dtype) == (jnp.float16, jnp.float32)
        assert_close(back, particle, 0.0)

    def test_a_number_fills_its_leaf_or_all_of_them(self):
        structure = Structure.of({"a": jnp.zeros(2), "b": jnp.zeros(())})
        np.testing.assert_array_equal(structure.ravel(1.5), [1.5, 1.5, 1.5])
        np.testing.assert_array_equal(structure.ravel({"a": 1.5, "b": 2}), [1.5, 1.5, 2.0])
        assert structure.ravel(2).dtype == jnp.float32

    def test_another_pytree_does_not_fit(self):
        structure = Structure.of({"a": jnp.zeros(2), "b": jnp.zeros(())})
        with pytest.raises(ValueError, match="[Kk]ey"):
            structure.ravel({"a": jnp.zeros(2), "c": jnp.zeros(())})
        with pytest.raises(ValueError, match="broadcast"):
            structure.ravel({"a": jnp.zeros(3), "b": 0.0})

    def test_it_works_on_many_particles_under_vmap(self):
        structure = Structure.of({"a": jnp.zeros(2), "b": jnp.zeros(())})
        particles = jax.jit(jax.vmap(structure.unravel))(normal_array(5, 3))
        assert particles["a"].shape == (5, 2)
        assert_close(jax.vmap(structure.ravel)(particles), normal_array(5, 3), 0.0)


class TestProblem:
    """The two ends of a path on flat vectors."""

    @pytest.mark.usefixtures("x64")
    def test_ends_are_the_users_functions(self):
        problem = tree_problem()
        x = normal_array(5)
        particle = {"b": x[0], "w": x[1:].reshape(2, 2)}
        ends = jax.jit(lambda x: (problem.log_target(x), problem.log_initial(x)))(x)
        assert_close(ends, jax.jit(lambda particle: (bumpy(particle), problem.initial.logdensity(particle)))(particle))
        assert_close(problem.center, jnp.array([0.4, -0.6, -0.6, -0.6, -0.6]))

    def test_draws_are_the_laws(self):
        problem = tree_problem()
        draws = eqx.filter_jit(problem.draw)(jax.random.key(1), 4)
        expected = jax.jit(jax.vmap(problem.initial.sample))(jax.random.split(jax.random.key(1), 4))
        assert_close(draws, jnp.column_stack([expected["b"], expected["w"].reshape(4, 4)]), 1e-6)

    @over("make_law", LAWS)
    def test_every_law_makes_a_problem(self, make_law: Any):
        problem = Problem.of(bumpy, make_law())
        shapes = jax.eval_shape(lambda: (problem.draw(jax.random.key(0), 3), problem.log_initial(problem.center)))
        assert shapes[0].shape == (3, problem.structure.dim)
        assert shapes[1].shape == ()
        assert problem.center.shape == (problem.structure.dim,)

    def test_the_targets_value_takes_the_particles_dtype(self):
        problem = Problem.of(lambda x: jnp.sum(x).astype(jnp.float16), Normal(shape=(2,)))
        assert problem.log_target(jnp.ones(2)).dtype == jnp.float32


class TestPopulation:
    """Which particles count."""

    def test_outside_the_support_there_is_no_slope(self):
        population = Population.of(
            jnp.zeros((2, 3)), jnp.array([-jnp.inf, 0.0]), jnp.array([[jnp.nan] * 3, [1.0, 2.0, 3.0]]), jnp.zeros(2)
        )
        np.testing.assert_array_equal(population.score, [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])

    @pytest.mark.parametrize(
        ("logdensity", "score", "time_derivative", "alive", "faulty"),
        [
            (-1.0, 0.5, 0.1, True, False),
            (-np.inf, 0.5, 0.1, False, False),
            (-np.inf, np.nan, np.nan, False, False),
            (-np.inf, np.inf, np.inf, False, False),
            (np.nan, 0.5, 0.1, False, True),
            (np.inf, 0.5, 0.1, True, True),
            (-1.0, np.nan, 0.1, True, True),
            (-1.0, np.inf, 0.1, True, True),
            (-1.0, 0.5, np.nan, True, True),
            (-1.0, 0.5, -np.inf, True, False),
        ],
    )
    def test_alive_and_faulty(self, logdensity: float, score: float, time_derivative: float, alive: bool, faulty: bool):
        population = Population.of(
            jnp.zeros((1, 2)), jnp.array([logdensity]), jnp.array([[0.0, score]]), jnp.array([time_derivative])
        )
        assert population.alive.tolist() == [alive]
        assert population.faulty.tolist() == [faulty]
        usable = alive and bool(np.isfinite(time_derivative))
        assert population.usable.tolist() == [usable]

    def test_lost(self):
        particles = jnp.array([[0.0, 1.0], [jnp.nan, 0.0], [0.0, -jnp.inf]])
        population = Population.of(particles, jnp.zeros(3), jnp.zeros((3, 2)), jnp.zeros(3))
        assert population.lost.tolist() == [False, True, True]

    @pytest.mark.usefixtures("x64")
    def test_evaluating_the_target_alone(self):
        problem, particles = box_problem(), normal_array(4, 2)
        population = eqx.filter_jit(evaluate_target)(particles, problem)
        value, score = jax.jit(jax.vmap(jax.value_and_grad(bumpy)))(particles)
        assert_close((population.particles, population.logdensity, population.score), (particles, value, score))
        assert not np.any(population.time_derivative)


def test_evaluations_add_up():
    total = Evaluations(gradients=2) + Evaluations(values=3, gradients=jnp.asarray(4))
    assert (total.values, total.gradients, total.total) == (3, 6, 9)


class Log:
    """A list that is compared by identity, and so may be part of a density's structure."""

    def __init__(self):
        self.asked: list[str] = []


class Noted(AbstractStochasticDensity):
    """Notes how it is asked, while it is traced; an estimate is the density times a random number of mean 1."""

    log: Log = eqx.field(static=True)
    per_particle: bool = False

    def __call__(self, particle: Any) -> Any:
        self.log.asked.append("whole")
        return bumpy(particle)

    def estimate(self, key: Any) -> Any:
        self.log.asked.append("estimate")
        factor = 1 + 0.1 * jax.random.normal(key)
        return lambda particle: factor * bumpy(particle)


def unweighted(adjustment: adjustments.AbstractAdjustment) -> methods.PGPS:
    return methods.PGPS(
        paths.Geometric(), fields.Zero(), trainers.NoTraining(), steppers.Fixed(0.5), adjustment, weighing=None
    )


class TestStochasticDensity:
    """Densities that can be estimated, and who is content with that."""

    @pytest.mark.parametrize("per_particle", [True, False])
    @pytest.mark.parametrize("name", [*METHODS, "pgps-mala", "pgps-hmc", "pgps-none"])
    def test_accepting_and_weighing_need_the_whole(self, name: str, per_particle: bool):
        """Metropolis's rule and weights see the density itself, and nothing but; all others estimates alone."""
        own = {
            "pgps-mala": unweighted(adjustments.MALA(num_steps=1)),
            "pgps-hmc": unweighted(adjustments.HMC(num_steps=1)),
            "pgps-none": unweighted(adjustments.NoAdjustment()),
        }
        exact = ("exact", "mala", "mala-adapted", "smc", "smc-hmc-ladder", "pgps-mala", "pgps-hmc")
        method, log = (METHODS | own)[name], Log()
        problem = Problem.of(Noted(log=log, per_particle=per_particle), Normal(shape=(2,)))
        state = eqx.filter_eval_shape(method.init, jax.random.key(0), problem, 12)
        assert set(log.asked) == {"whole" if name in exact else "estimate"}
        log.asked.clear()
        eqx.filter_eval_shape(method.step, jax.random.key(0), state, problem)
        assert set(log.asked) == {"whole" if name in exact else "estimate"}

    @pytest.mark.usefixtures("x64")
    def test_estimates_of_each_particle_or_of_all(self):
        x, key = normal_array(4, 2), jax.random.key(2)

        def values(per_particle: bool, key: Any) -> Any:
            problem = Problem.of(Noted(log=Log(), per_particle=per_particle), Normal(shape=(2,)))
            return map_particles(lambda x, problem: problem.log_target(x), x, problem, key)

        whole = jax.vmap(bumpy)(x)
        assert_close(values(True, None), whole)
        shared = values(False, key) / whole
        np.testing.assert_allclose(shared, 1 + 0.1 * jax.random.normal(key), rtol=1e-10)
        factors = [1 + 0.1 * jax.random.normal(key) for key in jax.random.split(key, 4)]
        np.testing.assert_allclose(values(True, key) / whole, factors, rtol=1e-10)

    def test_a_plain_function_has_no_use_for_a_key(self):
        problem, x = tree_problem(), normal_array(3, 5)
        with_key = evaluate_target(x, problem, jax.random.key(0))
        assert_close(with_key, evaluate_target(x, problem), 0.0)


def test_a_gradient_that_overflows_far_out_is_outside_the_support():
    """A scale of exp(x) that underflows: the log-density is finite there, and its gradient is not."""

    def logdensity(x: jax.Array) -> jax.Array:
        return -0.5 * (x[1] / jnp.exp(x[0])) ** 2 - x[0]

    x = jnp.array([[-1.0, 1.0], [-40.0, 1.0]])
    values, gradients = jax.vmap(jax.value_and_grad(logdensity))(x)
    assert np.all(np.isfinite(values))
    assert not np.all(np.isfinite(gradients[1]))
    population = evaluate_target(x, Problem.of(logdensity, Normal(shape=(2,))))
    np.testing.assert_array_equal(population.alive, [True, False])
    np.testing.assert_array_equal(population.score, [gradients[0], [0, 0]])
    assert not np.any(population.faulty)


def test_a_gradient_that_is_nan_elsewhere_is_a_fault():
    problem = Problem.of(lambda x: -jnp.sum(jnp.sqrt(x**2)), Normal(shape=(2,)))
    np.testing.assert_array_equal(evaluate_target(jnp.zeros((1, 2)), problem).faulty, [True])


def test_shapes_are_traced_once_for_functions_that_differ_in_numbers_alone():
    traced = []

    class Shifted(eqx.Module):
        shift: dict[str, jax.Array]

        def __call__(self, x: jax.Array) -> jax.Array:
            traced.append(1)
            return jnp.sum(x - self.shift["by"])

    for k in range(3):
        assert shape_of(Shifted({"by": jnp.full(2, float(k))}), jnp.zeros(2)).shape == ()
    assert len(traced) == 1
    shape_of(Shifted({"by": jnp.zeros(1)}), jnp.zeros(2))
    assert len(traced) == 2
