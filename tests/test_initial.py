"""Initial laws: normalised densities and exact samplers, on any pytree, with errors that name the argument."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jaxtyping import PyTree

from helpers import LAWS, assert_close, assert_moments, normal_array, over
from pgps import Normal, Uniform
from pgps.density import Structure
from pgps.initial import AbstractLaw, Custom, FullNormal, as_law

KEY = jax.random.key(3)

# pyright: reportArgumentType=false


@functools.cache
def draws_of(name: str) -> PyTree:
    """Independent draws of a law in LAWS."""
    return jax.jit(jax.vmap(LAWS[name]().sample))(jax.random.split(KEY, 20_000))


# Mean and variance of every law in LAWS, in its pytree.
MOMENTS: dict[str, tuple[PyTree, PyTree]] = {
    "normal": (np.array([0.5, -1.0, 2.0]), np.array([0.7, 1.5, 3.0]) ** 2),
    "normal-scalar": (1.0, 4.0),
    "normal-tree": ({"b": 0.5, "w": np.arange(4.0).reshape(2, 2)}, {"b": 2.25, "w": np.full((2, 2), 2.25)}),
    "full-normal": (np.array([1.0, -2.0]), np.array([2.0, 0.5])),
    "uniform": (np.array([1.0, 0.25]), np.array([4.0, 0.5]) ** 2 / 12),
    "uniform-tree": ({"b": 1.0, "w": np.full(3, 2.0)}, {"b": 3.0, "w": np.full(3, 4 / 3)}),
    "custom": (np.array([2.0, 2.0]), np.array([1.0, 1.0])),
}


@pytest.mark.parametrize("name", LAWS)
def test_draws_have_the_moments_of_the_law(name: str):
    law, (mean, variance) = LAWS[name](), MOMENTS[name]
    draws = draws_of(name)
    assert jax.tree.structure(draws) == jax.tree.structure(mean)
    # Independent draws: within four standard errors of mean and variance.
    jax.tree.map(assert_moments, draws, mean, variance)
    # The mean that a path is centred at is the law's; where it is estimated, from 1,000 draws.
    error = 4 * np.sqrt(1 / 1000) if name == "custom" else 1e-6
    assert_close(jax.tree.map(np.asarray, law.mean()), jax.tree.map(np.asarray, mean), error)


@pytest.mark.parametrize("name", [name for name in LAWS if name != "normal-scalar"])
def test_coordinates_are_drawn_independently(name: str):
    leaves = jax.tree.leaves(draws_of(name))
    draws = np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in leaves], axis=1)
    expected = np.eye(draws.shape[1])
    if name == "full-normal":
        expected[0, 1] = expected[1, 0] = 0.9
    # A correlation's standard error is at most 1/sqrt(n); four of them.
    np.testing.assert_allclose(np.corrcoef(draws.T), expected, atol=4 / np.sqrt(len(draws)))


@over("make_law", LAWS)
def test_a_law_is_normalised_against_a_wider_gaussian(make_law: Callable[[], AbstractLaw]):
    # Importance sampling from a wide Gaussian: the mean weight estimates the law's mass, with its own standard error.
    law = make_law()
    structure = Structure.of(jax.eval_shape(law.sample, KEY))
    center = np.asarray(structure.ravel(law.mean()))
    x = center + 3 * np.asarray(normal_array(50_000, structure.dim))
    logdensity = jax.jit(jax.vmap(lambda x: law.logdensity(structure.unravel(x))))(jnp.asarray(x))
    weights = np.exp(np.asarray(logdensity) - scipy.stats.norm.logpdf(x, center, 3).sum(axis=1))
    assert abs(weights.mean() - 1) < 4 * weights.std() / np.sqrt(len(weights))


@over("make_law", LAWS)
def test_a_law_follows_the_dtype_of_the_test(make_law: Callable[[], AbstractLaw]):
    for enabled, dtype in ((False, jnp.float32), (True, jnp.float64)):
        with jax.enable_x64(enabled):
            law = make_law()
            particle = jax.eval_shape(law.sample, KEY)
            assert {leaf.dtype for leaf in jax.tree.leaves(particle)} == {jnp.dtype(dtype)}
            value = jax.eval_shape(law.logdensity, particle)
            assert (value.shape, value.dtype) == ((), dtype)


@pytest.mark.usefixtures("x64")
class TestLogdensity:
    """Against SciPy."""

    def test_normal(self):
        mean, scale, x = np.array([0.5, -1.0, 2.0]), np.array([0.7, 1.5, 3.0]), np.array([0.1, 3.0, -4.0])
        expected = scipy.stats.norm.logpdf(x, mean, scale).sum()
        assert_close(Normal(mean, scale).logdensity(jnp.asarray(x)), jnp.asarray(expected))

    def test_normal_on_a_pytree(self):
        law = Normal({"b": jnp.asarray(0.5), "w": jnp.arange(4.0).reshape(2, 2)}, {"b": 2.0, "w": jnp.asarray(0.3)})
        x = {"b": 1.7, "w": np.array([[0.1, 0.9], [2.5, 3.3]])}
        expected = scipy.stats.norm.logpdf(1.7, 0.5, 2.0)
        expected += scipy.stats.norm.logpdf(x["w"], np.arange(4.0).reshape(2, 2), 0.3).sum()
        assert_close(law.logdensity(jax.tree.map(jnp.asarray, x)), jnp.asarray(expected))

    def test_full_normal(self):
        root = np.random.default_rng(0).standard_normal((4, 4))
        mean, covariance, x = np.arange(4.0), root @ root.T + 0.1 * np.eye(4), np.array([0.3, 0.2, 5.0, -1.0])
        expected = scipy.stats.multivariate_normal.logpdf(x, mean, covariance)
        assert_close(FullNormal(mean, covariance).logdensity(jnp.asarray(x)), jnp.asarray(expected))

    def test_uniform(self):
        law = Uniform(np.array([-1.0, 0.0]), np.array([3.0, 0.5]))
        assert_close(law.logdensity(jnp.array([0.0, 0.25])), jnp.asarray(-np.log(4 * 0.5)))
        for edge in ([-1.0, 0.0], [3.0, 0.5]):
            assert np.isfinite(law.logdensity(jnp.array(edge)))
        for outside in ([-1.1, 0.2], [0.0, 0.6], [9.0, 9.0]):
            assert law.logdensity(jnp.array(outside)) == -np.inf
        np.testing.assert_array_equal(jax.grad(law.logdensity)(jnp.array([9.0, 0.25])), 0.0)


class TestShapes:
    """Numbers, arrays and pytrees are brought to one shape."""

    @pytest.mark.parametrize("kind", [Normal, Uniform])
    def test_broadcasting(self, kind: Callable[..., Any]):
        shape_of = lambda law: jax.tree.map(lambda leaf: leaf.shape, law.mean())  # noqa: E731
        low, high = jnp.zeros(3), jnp.ones(3)
        assert shape_of(kind(0.0, 1.0)) == ()
        assert shape_of(kind(0.0, 1.0, shape=(2, 4))) == (2, 4)
        assert shape_of(kind(low, 1.0)) == (3,)
        assert shape_of(kind(0.0, high)) == (3,)
        assert shape_of(kind(low[:, None], jnp.ones((1, 2)))) == (3, 2)
        assert shape_of(kind(low, high, shape=(2, 3))) == (2, 3)
        assert shape_of(kind({"a": low, "b": 0.0}, 1.0)) == {"a": (3,), "b": ()}
        assert shape_of(kind(0.0, (high, jnp.ones(())))) == ((3,), ())
        assert shape_of(kind({"a": 0.0, "b": 0.0}, 1.0, shape=(2,))) == {"a": (2,), "b": (2,)}

    @pytest.mark.parametrize("kind", [Normal, Uniform])
    def test_shapes_that_do_not_fit(self, kind: Callable[..., Any]):
        names = {Normal: "mean .*scale", Uniform: "low .*high"}[kind]
        with pytest.raises(ValueError, match=rf"{names}.* do not broadcast; "):
            kind(jnp.zeros(3), jnp.ones(2))
        with pytest.raises(ValueError, match=rf"{names}.*shape .*; "):
            kind(jnp.zeros(3), jnp.ones(3), shape=(2,))
        # A shape of (1,) broadcasts with a mean of three, but then it is not the particle's shape.
        with pytest.raises(ValueError, match=r"shape .*\(1,\).*; "):
            kind(jnp.zeros(3), jnp.ones(3), shape=(1,))

    @pytest.mark.parametrize("kind", [Normal, Uniform])
    def test_trees_that_do_not_fit(self, kind: Callable[..., Any]):
        first, second = {Normal: ("mean", "scale"), Uniform: ("low", "high")}[kind]
        with pytest.raises(ValueError, match=f"{second} must match {first}'s structure .*; use the same pytree"):
            kind({"a": 0.0, "b": 0.0}, {"a": 1.0})
        with pytest.raises(ValueError, match=f"{first} must hold at least one array, got .*; "):
            kind({}, 1.0)

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
    @pytest.mark.parametrize("kind", [Normal, Uniform])
    def test_plain_numbers_do_not_widen_an_arrays_dtype(self, kind: Callable[..., Any], dtype: Any):
        with jax.enable_x64(True):
            law = kind(jnp.zeros(2, dtype), 1.0)
            assert law.mean().dtype == dtype
            assert jax.eval_shape(law.sample, KEY).dtype == dtype


class TestBadArguments:
    """Each error names the argument, its value and the remedy."""

    @pytest.mark.parametrize("value", [jnp.arange(3), np.arange(3), np.int64(2), True, jnp.array([True]), 1j, "zero"])
    def test_only_floating_point(self, value: Any):
        with pytest.raises(TypeError, match=r"mean must be floating point, got .* values; convert it"):
            Normal(value, 1.0)
        with pytest.raises(TypeError, match=r"scale must be floating point, got .* values; convert it"):
            Normal(0.0, value)
        with pytest.raises(TypeError, match=r"low must be floating point, got .* values; convert it"):
            Uniform(value, 9.0)
        with pytest.raises(TypeError, match=r"mean must be floating point, got .* values; convert it"):
            Normal({"a": 0.0, "b": value}, 1.0)

    def test_pythons_whole_numbers_pass(self):
        assert_close(Normal(1, 2, shape=(3,)).mean(), jnp.ones(3))
        assert jnp.issubdtype(Uniform(0, 4).mean().dtype, jnp.floating)
        assert Uniform(0, 4).mean() == 2.0

    @pytest.mark.parametrize("value", [np.nan, np.inf, jnp.array([0.0, jnp.nan])])
    def test_only_finite(self, value: Any):
        for make, name in ((lambda: Normal(value), "mean"), (lambda: Uniform(0.0, value), "high")):
            with pytest.raises(ValueError, match=f"{name} must be finite, got .*; "):
                make()

    @pytest.mark.parametrize("scale", [0.0, -1, jnp.array([1.0, 0.0]), {"a": 1.0, "b": -2.0}])
    def test_only_positive_scales(self, scale: Any):
        with pytest.raises(ValueError, match=r"scale must be positive, got .*; pass standard deviations above 0"):
            Normal(0.0, scale)

    @pytest.mark.parametrize(
        ("low", "high"), [(1.0, 1.0), (2, 1), (jnp.zeros(2), jnp.array([1.0, 0.0])), ({"a": 0.0}, {"a": -1.0})]
    )
    def test_only_boxes_with_an_inside(self, low: Any, high: Any):
        with pytest.raises(ValueError, match=r"low must lie below high, got low=.* and high=.*; "):
            Uniform(low, high)

    @pytest.mark.parametrize(
        "covariance",
        [
            pytest.param(np.array([[1.0, 2.0], [2.0, 1.0]]), id="indefinite"),
            pytest.param(np.array([[1.0, 1.0], [1.0, 1.0]]) - 1e-3 * np.eye(2), id="barely-indefinite"),
            pytest.param(np.array([[1.0, 0.5], [0.0, 1.0]]), id="not-symmetric"),
            pytest.param(np.zeros((2, 2)), id="zero"),
        ],
    )
    def test_only_positive_definite_covariances(self, covariance: np.ndarray):
        with pytest.raises(ValueError, match=r"covariance must be symmetric and positive definite, got .*; "):
            FullNormal(np.zeros(2), covariance)

    @pytest.mark.parametrize(("mean", "covariance"), [((2,), (3, 3)), ((2,), (2,)), ((), ()), ((2, 2), (2, 2))])
    def test_covariance_of_the_means_shape(self, mean: tuple[int, ...], covariance: tuple[int, ...]):
        with pytest.raises(ValueError, match=r"covariance must have shape \(D, D\) .*, got .*; "):
            FullNormal(np.zeros(mean), np.ones(covariance))
        with pytest.raises(TypeError, match="covariance must be floating point"):
            FullNormal(np.zeros(2), np.eye(2, dtype=int))


class TestCustom:
    """A law from a pair of functions."""

    sample_fn = staticmethod(lambda key: {"x": 3.0 + 2 * jax.random.normal(key, (2,))})
    logdensity_fn = staticmethod(lambda x: jnp.sum(jax.scipy.stats.norm.logpdf(x["x"], 3.0, 2.0)))

    def test_a_pair_is_a_law(self):
        law = as_law((self.sample_fn, self.logdensity_fn))
        assert isinstance(law, Custom)
        assert_close(law.sample(KEY), self.sample_fn(KEY))
        x = {"x": jnp.array([1.0, 2.0])}
        assert_close(law.logdensity(x), self.logdensity_fn(x))

    def test_its_mean_is_estimated_once_and_for_all(self):
        law = Custom(self.sample_fn, self.logdensity_fn)
        assert_close(law.mean(), Custom(self.sample_fn, self.logdensity_fn).mean(), 0.0)
        # The standard error of a mean of 1,000 draws, of which four are allowed.
        np.testing.assert_allclose(law.mean()["x"], 3.0, atol=4 * 2 / np.sqrt(1000))

    def test_a_mean_that_is_given_is_used(self):
        law = Custom(self.sample_fn, self.logdensity_fn, {"x": jnp.array([3.0, 3.0])})
        assert_close(law.mean(), {"x": jnp.array([3.0, 3.0])}, 0.0)

    def test_a_law_is_a_law(self):
        law = Normal()
        assert as_law(law) is law

    @pytest.mark.parametrize("value", [3.0, None, (1, 2, 3), jnp.zeros(2), lambda key: key])
    def test_anything_else_is_not(self, value: Any):
        with pytest.raises(TypeError, match=r"initial must be one of .*, got .*; "):
            as_law(value)

    def test_only_functions(self):
        with pytest.raises(TypeError, match=r"sample_fn must be a function .*, got 1; "):
            as_law((1, self.logdensity_fn))
        with pytest.raises(TypeError, match=r"logdensity_fn must be a function .*, got 'p'; "):
            as_law((self.sample_fn, "p"))
