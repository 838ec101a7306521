"""Many runs in one program are the runs one by one; and what is observed on the way is in the trace."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from pgps.adjustments import MALA
from pgps.density import Problem
from pgps.lanes import Lanes
from pgps.methods import Langevin, TemperedSMC
from pgps.settings import with_arrays
from pgps.spread import ONE_DEVICE
from pgps.steppers import ConditionalESS
from pgps.targets import GaussianMixture

# Single runs and many are two programs, whose bits are compared.
OPTIMISED = True
KEYS = jax.random.split(jax.random.key(3), 3)
STANDARD = pgps.Normal(shape=(2,))
METHODS = {
    "paper": pgps.paper(
        0.5, 0.8, psi=1.0, max_dt=0.2, width=8, max_training_steps=20, threshold=50.0, langevin_steps=2
    ),
    "smc": TemperedSMC(moves=MALA(num_steps=2)),
}
LANGEVIN = Langevin(0.05, 10)


def gaussian(x):
    return -0.5 * jnp.sum((x - 1.0) ** 2)


def mixture(share):
    return GaussianMixture(jnp.array([share, 1 - share]), jnp.array([[-1.0, 0.0], [1.0, 0.5]]), jnp.array([0.5, 0.7]))


def assert_same(one, other):
    """Bit for bit, but for the time that it took and the moment that it was made."""
    np.testing.assert_array_equal(one.particles, other.particles)
    np.testing.assert_array_equal(one.log_weights, other.log_weights)
    assert list(one.trace) == list(other.trace)
    for name in one.trace:
        np.testing.assert_array_equal(one.trace[name], other.trace[name])
    for name in ("status", "t", "num_evaluations", "warnings", "ess", "log_evidence", "log_evidence_error"):
        assert getattr(one, name) == getattr(other, name)
    told = [{k: v for k, v in run.provenance.items() if k not in ("seconds", "created")} for run in (one, other)]
    assert told[0] == told[1]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_results_are_those_of_single_runs(name):
    # A mixture, so that the single runs' program is that of the next test too.
    target = mixture(0.5)
    results = pgps.sample_many(target, STANDARD, keys=KEYS, num_particles=50, method=METHODS[name])
    assert len(results) == 3
    for key, result in zip(KEYS, results, strict=True):
        assert_same(result, pgps.sample(target, STANDARD, key=key, num_particles=50, method=METHODS[name]))
    assert not np.any(np.asarray(results[0].particles) == np.asarray(results[1].particles))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_every_run_has_a_density_of_its_own(name):
    targets = [mixture(share) for share in (0.05, 0.5, 0.95)]
    results = pgps.sample_many(targets, STANDARD, keys=KEYS, num_particles=50, method=METHODS[name])
    for target, key, result in zip(targets, KEYS, results, strict=True):
        assert_same(result, pgps.sample(target, STANDARD, key=key, num_particles=50, method=METHODS[name]))


SETTINGS = {
    # A whole number is as good as any, and what is decided on the host, such as the number of steps, is a setting too.
    "paper": [
        pgps.paper(alpha, 0.8, psi=psi, max_dt=0.3, width=8, max_training_steps=20, threshold=50.0)
        for alpha, psi in ((0, 0.5), (0.5, 1.0), (1, 2.0))
    ],
    "smc": [
        TemperedSMC(ConditionalESS(share), moves=MALA(num_steps=num)) for share, num in ((0.5, 1), (0.7, 2), (0.9, 3))
    ],
    "langevin": [Langevin(size, num) for size, num in ((0.01, 7), (0.05, 10), (0.1, 3))],
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_every_run_has_settings_of_its_own(name):
    target, methods = mixture(0.5), SETTINGS[name]
    results = pgps.sample_many(target, STANDARD, keys=KEYS, num_particles=50, method=methods)
    for method, key, result in zip(methods, KEYS, results, strict=True):
        assert_same(result, pgps.sample(target, STANDARD, key=key, num_particles=50, method=method))


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_a_sweep_of_settings_and_densities_with_one_key():
    methods, targets = SETTINGS["langevin"], [mixture(share) for share in (0.05, 0.5, 0.95)]
    results = pgps.sample_many(targets, STANDARD, keys=[KEYS[0]] * 3, num_particles=50, method=methods)
    for method, target, result in zip(methods, targets, results, strict=True):
        assert_same(result, pgps.sample(target, STANDARD, key=KEYS[0], num_particles=50, method=method))
    assert [len(result.trace["t"]) for result in results] == [7, 10, 3]


def count_traces(sample_with, calls):
    """How often a density is traced in each of several calls, `sample_with(density, call)`."""
    traces, counts = 0, []

    def logdensity(x):
        nonlocal traces
        traces += 1
        return gaussian(x)

    for call in calls:
        before = traces
        sample_with(logdensity, call)
        counts.append(traces - before)
    return counts


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_a_sweep_is_one_program():
    def sweep(logdensity, sizes):
        methods = [Langevin(size, 5) for size in sizes]
        keys = [KEYS[0]] * len(sizes)
        pgps.sample_many(logdensity, STANDARD, keys=keys, num_particles=16, method=methods)

    # The first time JAX looks once more, and remembers.
    counts = count_traces(sweep, [(0.01, 0.02), (0.01, 0.02, 0.03), (0.01, 0.02, 0.03, 0.04, 0.05)])
    assert counts[1] == counts[2]


@pytest.mark.parametrize(("name", "at_once"), [("langevin", 2), ("langevin", 3), ("langevin", 10), ("smc", 2)])
@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_runs_at_once_are_those_one_by_one_but_for_rounding(name, at_once):
    target, methods = mixture(0.5), SETTINGS[name]
    one_by_one, vectorised = (
        pgps.sample_many(target, STANDARD, keys=KEYS, num_particles=50, method=methods, at_once=number)
        for number in (1, at_once)
    )
    for one, other in zip(one_by_one, vectorised, strict=True):
        np.testing.assert_allclose(one.particles, other.particles, rtol=1e-4, atol=1e-5)
        assert (one.status, one.num_evaluations) == (other.status, other.num_evaluations)
        assert len(one.trace["t"]) == len(other.trace["t"])


class Odd(eqx.Module):
    """Leaves that are equal in all members, but not the same object, and no arrays."""

    data: jax.Array
    times: int
    name: str
    scale: float
    function: Callable

    def __call__(self, x) -> jax.Array:
        assert self.scale > 0
        assert self.name.startswith("odd")
        return jnp.sum(jnp.stack([self.function(x - self.data) for _ in range(self.times // 500)]))


def test_members_of_a_list_may_have_equal_leaves_of_any_kind():
    law = GaussianMixture(jnp.ones(1), jnp.zeros((1, 2)), jnp.ones(1))
    targets = [Odd(jnp.full(2, i), int("1000"), f"odd{[]}", float("1.5"), law.__call__) for i in range(3)]
    results = pgps.sample_many(targets, STANDARD, keys=KEYS, num_particles=16, method=LANGEVIN)
    for target, key, result in zip(targets, KEYS, results, strict=True):
        assert_same(result, pgps.sample(target, STANDARD, key=key, num_particles=16, method=LANGEVIN))


def test_numbers_of_numpy_are_settings():
    sizes: Any = np.array([0.01, 0.02, 0.1], np.float32)
    nums: Any = np.arange(3, 6)
    methods = [Langevin(size, num) for size, num in zip(sizes, nums, strict=True)]
    results = pgps.sample_many(gaussian, STANDARD, keys=KEYS, num_particles=16, method=methods)
    assert [len(result.trace["t"]) for result in results] == [3, 4, 5]


def test_what_runs_share_is_not_copied_for_each():
    data = jnp.arange(5.0)
    problems = [Problem.of(Shared(data, jnp.asarray(share)), STANDARD, ONE_DEVICE) for share in (0.1, 0.2)]
    problems = [problems[0], dataclasses.replace(problems[0], logdensity_fn=problems[1].logdensity_fn)]
    lanes = Lanes.of([with_arrays(LANGEVIN, jnp.float32)], problems, KEYS[:2])
    [own] = jax.tree.leaves(lanes.own)
    np.testing.assert_allclose(own, [0.1, 0.2])


def test_a_run_that_fails_leaves_the_others_alone():
    def cliff(x):
        return jnp.where(x[0] < 3.2, gaussian(x), jnp.nan)

    method = Langevin(0.05, 10)
    with pytest.warns(pgps.PGPSWarning, match="nan"):
        results = pgps.sample_many(cliff, STANDARD, keys=jax.random.split(KEYS[0], 8), num_particles=20, method=method)
    statuses = {result.status for result in results}
    assert statuses == {pgps.Status.COMPLETED, pgps.Status.NONFINITE_DENSITY}
    for result in results:
        assert len(result.trace["t"]) == 10 or result.status == pgps.Status.NONFINITE_DENSITY
        assert np.all(np.isfinite(jax.vmap(cliff)(result.particles)))


def test_the_number_of_keys_does_not_change_how_often_a_density_is_traced():
    def sample_with(logdensity, keys):
        pgps.sample_many(logdensity, STANDARD, keys=keys, num_particles=16, method=LANGEVIN)

    # The first time JAX looks once more, and remembers.
    keys = [jax.random.split(KEYS[0], num) for num in (3, 2, 7)]
    counts = count_traces(sample_with, [*keys, jax.random.split(KEYS[1], 7)])
    assert counts[1] == counts[2]
    # Other keys run in the same program: only the checks, which compile nothing, look at the function again.
    assert counts[3] <= 3


def test_keys_in_a_list():
    stacked = pgps.sample_many(gaussian, STANDARD, keys=KEYS, num_particles=16, method=LANGEVIN)
    listed = pgps.sample_many(gaussian, STANDARD, keys=list(KEYS), num_particles=16, method=LANGEVIN)
    for one, other in zip(stacked, listed, strict=True):
        assert_same(one, other)


def observe(x):
    return {"mean": jnp.mean(x), "largest": jnp.max(x[:, 0]), "constant": 1.0}


class TestObserve:
    def test_what_is_observed_is_what_a_callback_sees(self):
        seen = []
        result = pgps.sample(
            gaussian, STANDARD, key=KEYS[0], num_particles=16, method=LANGEVIN, callback=seen.append, observe=observe
        )
        particles = [np.asarray(snapshot.particles) for snapshot in seen[1:]]
        np.testing.assert_allclose(result.trace["mean"], [x.mean() for x in particles], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(result.trace["largest"], [x[:, 0].max() for x in particles])
        np.testing.assert_array_equal(result.trace["constant"], np.ones(10))
        assert seen[1].row["largest"] == result.trace["largest"][0]

    def test_it_changes_nothing_else(self):
        plain = pgps.sample(gaussian, STANDARD, key=KEYS[0], num_particles=16, method=LANGEVIN)
        observed = pgps.sample(gaussian, STANDARD, key=KEYS[0], num_particles=16, method=LANGEVIN, observe=observe)
        np.testing.assert_array_equal(plain.particles, observed.particles)
        assert set(observed.trace) - set(plain.trace) == {"mean", "largest", "constant"}

    def test_particles_have_the_user_s_structure_and_many_runs_a_column_each(self):
        initial = pgps.Normal({"a": jnp.zeros(2), "b": jnp.ones(())}, 1.0)
        results = pgps.sample_many(
            lambda x: -0.5 * (jnp.sum(x["a"] ** 2) + x["b"] ** 2),
            initial,
            keys=KEYS,
            num_particles=16,
            method=LANGEVIN,
            observe=lambda x: {"b": jnp.mean(x["b"])},
        )
        for result in results:
            assert result.trace["b"][-1] == pytest.approx(float(result.particles["b"].mean()), abs=1e-6)


class Shared(eqx.Module):
    data: jax.Array
    share: jax.Array

    def __call__(self, x):
        return gaussian(x) * self.share + jnp.sum(self.data)


class Masked(eqx.Module):
    mask: jax.Array

    def __call__(self, x):
        return jnp.sum(jnp.where(~self.mask, gaussian(x), 0.0))


class OtherShape(eqx.Module):
    offset: jax.Array | np.ndarray

    def __call__(self, x):
        return gaussian(x - self.offset)


class TestBadInput:
    """Refused before anything is compiled, on one line."""

    @pytest.fixture(autouse=True)
    def _nothing_is_run(self, monkeypatch):
        def refuse(*_):
            raise AssertionError("the sampler was started")

        monkeypatch.setattr(sys.modules["pgps.sample"], "drive", refuse)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"keys": []}, ValueError, ["keys", "at least one", "jax.random.split"]),
            ({"keys": KEYS[:0]}, ValueError, ["keys", "at least one"]),
            ({"keys": [0, 1]}, TypeError, ["key", "0", "jax.random.key(0)"]),
            ({"logdensity_fn": [mixture(0.5)] * 2}, ValueError, ["logdensity_fn", "one per key (3)", "got 2"]),
            ({"logdensity_fn": []}, ValueError, ["logdensity_fn", "got 0"]),
            (
                {"logdensity_fn": [mixture(0.5), mixture(0.5), OtherShape(jnp.zeros(2))]},
                ValueError,
                ["logdensity_fn", "values of their arrays alone", "equinox.Module"],
            ),
            (
                {"logdensity_fn": [OtherShape(jnp.zeros(2)), OtherShape(jnp.zeros(2)), OtherShape(jnp.zeros(()))]},
                ValueError,
                ["logdensity_fn", "values of their arrays alone"],
            ),
            (
                {"logdensity_fn": [gaussian, lambda x: -jnp.sum(x**2), lambda x: -jnp.sum(x**4)]},
                ValueError,
                ["logdensity_fn", "values of their arrays alone", "pgps.sample"],
            ),
            (
                {"logdensity_fn": [OtherShape(np.zeros(2)), OtherShape(np.ones(2)), OtherShape(np.zeros(3))]},
                ValueError,
                ["logdensity_fn", "values of their arrays alone"],
            ),
            (
                {"logdensity_fn": [Masked(mask) for mask in (jnp.array([True]), jnp.array([1]), jnp.array([0]))]},
                ValueError,
                ["logdensity_fn", "values of their arrays alone"],
            ),
            ({"method": [LANGEVIN] * 2}, ValueError, ["method", "one per key (3)", "got 2"]),
            ({"method": []}, ValueError, ["method", "got 0"]),
            ({"method": "exact"}, TypeError, ["method", "'exact'", "pgps.exact()"]),
            ({"method": [LANGEVIN, LANGEVIN, "langevin"]}, TypeError, ["method", "'langevin'", "pgps.exact()"]),
            (
                {"method": [LANGEVIN, LANGEVIN, TemperedSMC()]},
                ValueError,
                ["method", "differ in numbers alone", "pgps.sample"],
            ),
            (
                {"method": [pgps.paper(width=8), pgps.paper(width=8), pgps.paper(width=9)]},
                ValueError,
                ["method", "in none that decides a shape"],
            ),
            ({"logdensity_fn": [1.0, 2.0, 3.0]}, TypeError, ["logdensity_fn", "1.0", "callable"]),
            ({"at_once": 0}, ValueError, ["at_once", "0"]),
            ({"at_once": 1.5}, TypeError, ["at_once", "1.5", "integer"]),
            ({"observe": 3}, TypeError, ["observe", "3", "dict of scalars"]),
            ({"observe": lambda x: jnp.mean(x)}, ValueError, ["observe", "dict of scalars"]),
            (
                {"observe": lambda x: {"mean": jnp.mean(x, axis=0)}},
                ValueError,
                ["observe", "dict of scalars", "shape=(2,)"],
            ),
            ({"observe": lambda x: {"mean": x["a"]}}, ValueError, ["observe fails on particles", "jax.numpy"]),
            ({"observe": lambda x: {"mean": float(np.mean(x))}}, ValueError, ["observe fails on particles"]),
            ({"num_particles": 1}, ValueError, ["num_particles", "1"]),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_arguments(self, change, error, words):
        arguments = {"logdensity_fn": gaussian, "initial": STANDARD, "keys": KEYS, "num_particles": 8} | change
        with pytest.raises(error) as caught:
            pgps.sample_many(arguments.pop("logdensity_fn"), arguments.pop("initial"), **arguments)
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message
