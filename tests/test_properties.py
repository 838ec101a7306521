"""What holds for any numbers, not for chosen ones: of paths, weights, resampling and bijectors."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array

from helpers import BIJECTORS, CONSTRAINTS, as_arrays, assert_close, path_values, vector_problem
from pgps.bijectors import Simplex
from pgps.density import Problem
from pgps.paths import AbstractPath, CautiousShrinkage, Geometric, LogWeightedShrinkage, PathValue
from pgps.weights import Weights, effective_sample_size, residual, systematic
from properties import EXAMPLES, UNIT, log_weights, vectors

NUM = 32
SEEDS = st.integers(0, 2**32 - 1)


def member(path: AbstractPath, t: Array, x: Array, problem: Problem) -> PathValue:
    return path.evaluate(t, x, problem)


def differentiated(path: AbstractPath, t: Array, x: Array, problem: Problem) -> PathValue:
    """The path's log-density and its derivatives, one by one."""
    slopes = (jax.grad(path.logdensity, argnums=argument)(t, x, problem) for argument in (1, 0))
    return PathValue(path.logdensity(t, x, problem), *slopes)


def ends(_: None, t: Array, x: Array, problem: Problem) -> PathValue:
    """The initial law at t = 0 and the target at t = 1."""
    start, end = (jax.value_and_grad(end)(x) for end in (problem.log_initial, problem.log_target))
    value, score = jax.tree.map(lambda a, b: jnp.where(t == 0, a, b), start, end)
    return PathValue(value, score, jnp.zeros(()))


@pytest.mark.usefixtures("x64")
class TestPaths:
    @EXAMPLES
    @given(
        kind=st.sampled_from([LogWeightedShrinkage, CautiousShrinkage]),
        dim=st.sampled_from([1, 3]),
        alpha=UNIT,
        beta=st.floats(0.05, 1),
        t=UNIT,
        x=vectors(3, -5, 5),
    )
    def test_shrinkage(self, kind: type[LogWeightedShrinkage], dim: int, alpha: float, beta: float, t: float, x):
        self.check(kind(alpha, beta), dim, t, x)

    @EXAMPLES
    @given(dim=st.sampled_from([1, 3]), t=UNIT, x=vectors(3, -5, 5))
    def test_geometric(self, dim: int, t: float, x: np.ndarray):
        self.check(Geometric(), dim, t, x)

    def check(self, path: AbstractPath, dim: int, t: float, x: np.ndarray) -> None:
        """It begins and ends where it should, and its score and time derivative are those of its log-density."""
        problem, particles = vector_problem(dim=dim), jnp.asarray(x[None, :dim])
        arguments = as_arrays(path), jnp.array([0.0, t, 1.0]), particles, problem
        value = path_values(member, *arguments)
        assert_close(value[:3], path_values(differentiated, *arguments)[:3], 1e-8)
        expected = path_values(ends, None, *arguments[1:])
        for end in (0, -1):
            assert_close((value.logdensity[end], value.score[end]), (expected[0][end], expected[1][end]), 1e-12)


@jax.jit
def weighed(first: Array, second: Array) -> tuple[Weights, Weights, dict[str, Array]]:
    """Equal weights after one and after two rounds of increments, and what the second have to say."""
    one = Weights.equal(len(first), first.dtype).reweighted(first)
    two = one.reweighted(second)
    return one, two, {name: getattr(two, name) for name in ("log_weights", "log_evidence", "log_evidence_error", "ess")}


@pytest.mark.usefixtures("x64")
class TestWeights:
    @EXAMPLES
    @given(first=log_weights(NUM, 50), second=vectors(NUM, -50, 50), shift=st.floats(-200, 200))
    def test_evidence_weights_and_their_shift(self, first: np.ndarray, second: np.ndarray, shift: float):
        one, two, told = weighed(jnp.asarray(first), jnp.asarray(second))
        total = np.logaddexp.reduce(first + second)
        assert_close(told["log_evidence"], total - np.log(NUM), 1e-9)
        assert_close(told["log_weights"][first > -np.inf], (first + second - total)[first > -np.inf], 1e-9)
        np.testing.assert_array_equal(np.asarray(told["log_weights"]) == -np.inf, first == -np.inf)
        # An increment of the log evidence is the log of the increments' mean under the weights so far.
        increment = np.logaddexp.reduce(np.asarray(one.log_weights) + second)
        assert_close(told["log_evidence"] - one.log_evidence, increment, 1e-9)

        # A constant in all increments is one in the log evidence, and nowhere else.
        *_, shifted = weighed(jnp.asarray(first), jnp.asarray(second + shift))
        assert_close(shifted.pop("log_evidence"), told.pop("log_evidence") + shift, 1e-9)
        assert_close(shifted, told, 1e-9)
        assert_close(np.sum(np.exp(two.log_weights)), 1.0, 1e-12)
        assert 0 <= told["log_evidence_error"] < 1

    @EXAMPLES
    @given(values=log_weights(NUM, 300), shift=st.floats(-1e4, 1e4))
    def test_effective_sample_size(self, values: np.ndarray, shift: float):
        ess = compiled_ess(jnp.asarray(values))
        assert 1 - 1e-9 <= ess <= np.sum(values > -np.inf) + 1e-9
        assert_close(compiled_ess(jnp.asarray(values + shift)), ess, 1e-8)

    @EXAMPLES
    @given(values=log_weights(NUM, 100), seed=SEEDS)
    def test_resampling_keeps_the_evidence_and_the_families(self, values: np.ndarray, seed: int):
        before, after, indices = resampled(jnp.asarray(values), jax.random.key(seed))
        assert after.log_evidences == before.log_evidences
        np.testing.assert_allclose(np.exp(after.log_weights), 1 / NUM, rtol=1e-12)
        np.testing.assert_array_equal(after.families, np.asarray(before.families)[indices])


compiled_ess = jax.jit(effective_sample_size)


@jax.jit
def resampled(values: Array, key: Array) -> tuple[Weights, Weights, Array]:
    before = Weights.equal(NUM, values.dtype).reweighted(values)
    # Effective shares are 1 at most.
    return before, *before.resampled(key, 2.0)


@pytest.mark.parametrize("scheme", [jax.jit(systematic), jax.jit(residual)], ids=["systematic", "residual"])
@EXAMPLES
@given(values=log_weights(NUM, 60), seed=SEEDS)
def test_resampling_copies_in_proportion(scheme: Callable[[Array, Array], Array], values: np.ndarray, seed: int):
    values = values.astype(np.float32)
    indices = np.asarray(scheme(jax.random.key(seed), jnp.asarray(values)))
    counts = np.bincount(indices, minlength=NUM)
    assert indices.shape == counts.shape == (NUM,)
    weights = np.exp(values.astype(float) - values.max())
    # In single precision sums of weights are off by some 1e-7 of their number.
    assert np.all(np.abs(counts - NUM * weights / weights.sum()) < 1 + 1e-4)
    assert np.all(counts[values == -np.inf] == 0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", BIJECTORS)
def test_bijectors(name: str):
    bijector = BIJECTORS[name]

    @jax.jit
    def everything(x: Array) -> tuple[Array, ...]:
        y = bijector.forward(x)
        return y, bijector.inverse(y), bijector.log_det(x), jax.jacfwd(bijector.forward)(x)

    @EXAMPLES
    @given(x=vectors(3, -6, 6))
    def check(x: np.ndarray) -> None:
        y, back, log_det, jacobian = map(np.asarray, everything(jnp.asarray(x)))
        assert np.all(CONSTRAINTS[name](y))
        np.testing.assert_allclose(back, x, rtol=1e-8, atol=1e-8)
        square = jacobian[:3] if isinstance(bijector, Simplex) else jacobian
        np.testing.assert_allclose(log_det, np.linalg.slogdet(square).logabsdet, rtol=1e-8, atol=1e-8)

    check()
