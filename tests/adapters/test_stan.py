"""Stan's models, with a stand-in that has the interface of BridgeStan's StanModel: nothing is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from helpers import assert_close, normal_array
from pgps.adapters.stan import StanModel

# pyright: reportArgumentType=false

KEY = jax.random.key(10)


class StandIn:
    """tau > 0 and a matrix b[2, 3]: ln tau ~ N(1, 0.5), b ~ N(tau / 4, 1), with what BridgeStan has for it."""

    def __init__(self, dim: int = 7):
        self.dim, self.calls = dim, 0

    def name(self) -> str:
        return "stand_in"

    def param_unc_num(self) -> int:
        return self.dim

    def param_names(self, *, include_tp: bool = False, include_gq: bool = False) -> list[str]:
        names = ["tau", "b.1.1", "b.2.1", "b.1.2", "b.2.2", "b.1.3", "b.2.3"]
        return names + (["twice"] if include_tp else [])

    def param_constrain(self, theta_unc: np.ndarray, *, include_tp: bool = False, **_: Any) -> np.ndarray:
        assert theta_unc.dtype == np.float64
        tau = np.exp(theta_unc[0])
        return np.concatenate([[tau], theta_unc[1:], [2 * tau] if include_tp else []])

    def log_density_gradient(self, theta_unc: np.ndarray, *, propto: bool = True, jacobian: bool = True) -> Any:
        assert theta_unc.dtype == np.float64
        assert theta_unc.shape == (self.dim,)
        assert jacobian
        assert not propto, "the evidence needs the constants"
        self.calls += 1
        if theta_unc[0] > 30:
            raise RuntimeError("Exception: normal_lpdf: Location parameter is inf")
        log_tau, b = theta_unc[0], theta_unc[1:]
        mean = np.exp(log_tau) / 4
        value = (
            -2 * (log_tau - 1) ** 2 + 0.5 * np.log(2 / np.pi) - 0.5 * np.sum((b - mean) ** 2) - 3 * np.log(2 * np.pi)
        )
        return float(value), np.concatenate([[-4 * (log_tau - 1) + mean * np.sum(b - mean)], mean - b])


def reference(x: jax.Array) -> jax.Array:
    """The same in JAX."""
    norm = jax.scipy.stats.norm.logpdf
    return norm(x[0], 1.0, 0.5) + jnp.sum(norm(x[1:], jnp.exp(x[0]) / 4, 1.0))


def test_values_and_gradients_are_stans():
    stan = StandIn()
    model = StanModel(stan)
    x = normal_array(5, 7)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(model)))(x)
    assert_close((values, gradients), jax.vmap(jax.value_and_grad(reference))(x), 1e-4)
    # A value and its gradient are one call of Stan's per particle.
    assert stan.calls == 5
    assert_close(model(x[0]), reference(x[0]), 1e-4)
    assert values.dtype == jnp.float32


def test_a_point_that_stan_refuses_lies_outside_the_support():
    value, gradient = jax.value_and_grad(StanModel(StandIn()))(jnp.full(7, 31.0))
    assert value == -jnp.inf
    assert_close(gradient, jnp.zeros(7))


def test_variables_have_their_shapes():
    x = normal_array(4, 7)
    variables = StanModel(StandIn()).constrain(x)
    assert jax.tree.map(jnp.shape, variables) == {"tau": (4,), "b": (4, 2, 3), "twice": (4,)}
    assert_close(variables["tau"], jnp.exp(x[:, 0]), 1e-6)
    # b.2.1 is the third number, b.1.2 the fourth.
    assert_close(variables["b"][:, 1, 0], x[:, 2])
    assert_close(variables["b"][:, 0, 1], x[:, 3])
    assert_close(variables["twice"], 2 * variables["tau"], 1e-6)


def test_a_model_is_sampled_from_a_fit():
    result = pgps.adapters.stan.sample(
        StandIn(), key=KEY, num_particles=100, method=pgps.methods.Langevin(2e-2, 400), progress=False
    )
    assert result.particles["b"].shape == (100, 2, 3)
    mean = np.exp(1 + 0.125) / 4
    # The variance of b is 1 and that of tau / 4, which all entries share.
    error = np.sqrt((1 + mean**2 * (np.exp(0.25) - 1)) / 100)
    assert np.all(np.abs(result.particles["b"].mean(axis=0) - mean) < 4 * error)


def test_misuse_is_named():
    with pytest.raises(TypeError, match="model must be a file or a bridgestan.StanModel, got 3"):
        StanModel(3)
    with pytest.raises(FileNotFoundError, match="but nowhere.stan is none; check the path"):
        StanModel("nowhere.stan")
    with pytest.raises(ValueError, match="model stand_in must have a parameter"):
        StanModel(StandIn(0))
    with pytest.raises(ValueError, match="initial cannot be the prior of stand_in"):
        StanModel(StandIn()).prior()
