"""The host loop: limits on evaluations and seconds, and programs that are compiled once."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from helpers import METHODS, over, vector_problem
from pgps import lanes as lanes_module
from pgps import methods, run
from pgps.checkpoint import Kept
from pgps.journal import Journal
from pgps.result import Status
from pgps.settings import with_arrays

KEY = jax.random.key(0)
LAW = pgps.Normal(0.0, 2.0, shape=(2,))
LANGEVIN = methods.Langevin(1e-2, 20)


def gaussian(x):
    return -0.5 * jnp.sum(x**2)


def sample(method, **limits):
    return pgps.sample(gaussian, LAW, key=KEY, num_particles=8, method=method, **limits)


class TestEvaluationLimit:
    @pytest.mark.parametrize(("limit", "steps"), [(50, 6), (56, 6), (57, 7), (10**12, 20)])
    def test_ends_after_the_step_that_reaches_it(self, limit, steps):
        # One evaluation of the eight particles at the start, and one per step.
        if steps == 20:
            assert sample(LANGEVIN, max_evaluations=limit).status == Status.COMPLETED
            return
        with pytest.warns(pgps.PGPSWarning, match=f"max_evaluations = {limit} was reached at t = .*; raise it"):
            result = sample(LANGEVIN, max_evaluations=limit)
        assert result.status == Status.EVALUATION_LIMIT
        assert len(result.trace["t"]) == steps
        assert result.num_evaluations.total == 8 * (1 + steps)
        assert result.t == pytest.approx(steps / 20)

    def test_a_limit_that_the_last_step_reaches_is_none(self):
        assert sample(LANGEVIN, max_evaluations=8 * 21).status == Status.COMPLETED

    def test_fewer_than_particles_ends_at_the_start(self):
        with pytest.warns(pgps.PGPSWarning, match="max_evaluations"):
            result = sample(LANGEVIN, max_evaluations=3)
        assert (result.t, len(result.trace["t"]), result.num_evaluations.total) == (0, 0, 8)

    def test_what_is_returned_is_the_run_so_far(self):
        seen = []
        sample(LANGEVIN, callback=seen.append)
        with pytest.warns(pgps.PGPSWarning, match="those of p_t and not of the target"):
            result = sample(LANGEVIN, max_evaluations=100)
        snapshot = seen[len(result.trace["t"])]
        assert result.t == snapshot.t < 1
        np.testing.assert_array_equal(result.particles, snapshot.particles)
        assert "evaluation_limit" in result.summary()

    def test_throw(self):
        with pytest.raises(RuntimeError, match="max_evaluations"):
            sample(LANGEVIN, max_evaluations=50, throw=True)


class TestTimeLimit:
    def test_ends_after_a_chunk(self):
        slow = lambda snapshot: time.sleep(0.01)  # noqa: E731
        with pytest.warns(pgps.PGPSWarning, match="max_seconds had passed at t = 0.05.*keep the run in a checkpoint"):
            result = sample(LANGEVIN, max_seconds=1e-3, callback=slow)
        assert result.status == Status.TIME_LIMIT
        # Compilation alone took longer, and one chunk is always done.
        assert len(result.trace["t"]) == 1

    def test_a_limit_that_is_not_reached(self):
        assert sample(LANGEVIN, max_seconds=3600).status == Status.COMPLETED


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_evaluations": 0}, ["max_evaluations", "0", "at least 1"]),
        ({"max_evaluations": 2.5}, ["max_evaluations", "2.5", "integer"]),
        ({"max_seconds": 0}, ["max_seconds", "0", "positive"]),
        ({"max_seconds": float("nan")}, ["max_seconds", "nan"]),
        ({"max_seconds": "x"}, ["max_seconds", "'x'"]),
    ],
)
def test_limits_that_make_no_sense(limits, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        sample(LANGEVIN, **limits)
    assert all(word in str(caught.value) for word in words)


def test_chunks_grow_while_they_are_short_and_shrink_when_they_are_long():
    assert [run._next_size(size, 0.01) for size in (1, 2, 32, 64)] == [20, 40, 64, 64]
    assert [run._next_size(size, 0.07) for size in (1, 32, 64)] == [2, 64, 64]
    assert [run._next_size(size, 0.2) for size in (1, 8)] == [1, 8]
    assert [run._next_size(size, 1.0) for size in (1, 8)] == [1, 4]
    # As by a clock that is too coarse.
    assert run._next_size(1, 0.0) == 64


@over("method", METHODS)
def test_a_step_changes_no_type(method):
    """Types that differ from one call to the next, weak ones too, would mean compiling all of it again."""
    method, limit = with_arrays(method, jnp.float32), jnp.asarray(100)
    lanes = run.Lanes.of([method], [vector_problem()], jax.random.split(KEY, 1))
    begun = eqx.filter_eval_shape(lanes_module.begin_runs, lanes, 8, limit)
    advanced, _, _ = eqx.filter_eval_shape(lanes_module.advance_runs, lanes, limit, None, begun, jnp.asarray(0))
    assert jax.tree.leaves(jax.tree.map(_kind, begun)) == jax.tree.leaves(jax.tree.map(_kind, advanced))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(begun))


def _kind(leaf: jax.ShapeDtypeStruct) -> str:
    return f"{leaf.dtype}{leaf.shape}{leaf.weak_type}"


def test_rows_do_not_keep_the_buffer_that_they_came_in():
    journal, buffer = Journal(Kept(None, [], 0.0, []), time.perf_counter()), np.zeros((1, 64))
    assert journal.add(None, {"t": buffer}, jnp.array([2])) == 2
    rows = journal.last_rows()["t"]
    assert rows.shape == (2,)
    assert not np.shares_memory(rows, buffer)
