"""The adaptive ladder: the time step at which the conditional effective sample size is the target."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from helpers import normal_array
from pgps.steppers import ConditionalESS, conditional_ess

STILL = jnp.zeros((40, 2))
time_step = jax.jit(lambda stepper, *arguments: stepper.time_step(*arguments))


def share_by_hand(log_weights: np.ndarray, increments: np.ndarray) -> float:
    W = np.exp(log_weights) / np.sum(np.exp(log_weights))
    w = np.exp(increments)
    return float(np.sum(W * w) ** 2 / np.sum(W * w**2))


def usual() -> tuple[np.ndarray, np.ndarray]:
    """Rates and weights of forty particles, all of them different."""
    return 10 * np.asarray(normal_array(40)), np.array(normal_array(40, seed=1))


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.usefixtures("x64")
def test_the_formula(spread: float):
    rates, log_weights = usual()
    expected = share_by_hand(spread * log_weights, 0.1 * rates)
    assert 0.2 < expected < 0.8
    actual = conditional_ess(jnp.asarray(spread * log_weights + 3), jnp.asarray(0.1 * rates - 7))
    assert float(actual) == pytest.approx(expected, rel=1e-12)
    if spread == 0:
        # Equal weights: the usual effective sample size, (sum w)^2 / (N sum w^2).
        w = np.exp(0.1 * rates)
        assert expected == pytest.approx(w.sum() ** 2 / (w**2).sum() / 40)


@pytest.mark.parametrize("target", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("t", [0.0, 0.6])
@pytest.mark.usefixtures("x64")
def test_the_largest_step_that_keeps_the_target(target: float, t: float):
    rates, log_weights = usual()
    expected = brentq(lambda dt: share_by_hand(log_weights, dt * rates) - target, 1e-12, 1 - t, xtol=1e-14)
    dt = time_step(ConditionalESS(target), jnp.asarray(t), STILL, jnp.asarray(rates), jnp.asarray(log_weights))
    assert float(dt) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("t", "max_dt", "expected"), [(0.0, 1.0, 1.0), (0.75, 1.0, 0.25), (0.5, 0.125, 0.125)])
def test_takes_the_whole_rest_if_it_can(t: float, max_dt: float, expected: float):
    rates, log_weights = usual()
    arguments = jnp.asarray(t), STILL, jnp.asarray(0.01 * rates), jnp.asarray(log_weights)
    assert time_step(ConditionalESS(0.9, max_dt), *arguments) == expected


@pytest.mark.parametrize("rate", [-np.inf, np.inf, np.nan, 1e30])
def test_weights_of_zero_are_ignored(rate: float):
    rates, log_weights = usual()
    dead = np.arange(40) % 7 == 3
    log_weights = jnp.asarray(np.where(dead, -np.inf, log_weights))
    with_dead = time_step(
        ConditionalESS(), jnp.asarray(0.0), STILL, jnp.asarray(np.where(dead, rate, rates)), log_weights
    )
    without = time_step(ConditionalESS(), jnp.asarray(0.0), STILL[~dead], jnp.asarray(rates[~dead]), log_weights[~dead])
    assert 0 < without < 1
    assert float(with_dead) == pytest.approx(float(without), rel=1e-5)


@pytest.mark.parametrize("t", [0.0, 0.9, 0.99999])
@pytest.mark.parametrize("num_leaving", [1, 30, 40])
def test_particles_that_leave_the_support_leave_a_positive_step(t: float, num_leaving: int):
    rates, log_weights = usual()
    leaving = np.arange(40) < num_leaving
    rates = jnp.asarray(np.where(leaving, -np.inf, rates))
    dt = time_step(ConditionalESS(0.999), jnp.asarray(t), STILL, rates, jnp.asarray(log_weights))
    assert 0 < dt <= 1 - t


@pytest.mark.usefixtures("x64")
def test_a_few_that_leave_do_not_hold_up_the_others():
    rates, log_weights = usual()
    rates[0], log_weights[0] = -np.inf, -3.0
    dt = float(time_step(ConditionalESS(0.8), jnp.asarray(0.0), STILL, jnp.asarray(rates), jnp.asarray(log_weights)))
    assert share_by_hand(log_weights, dt * rates) == pytest.approx(0.8, abs=1e-4)


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ConditionalESS(target=0.0), ValueError, r"target must lie in \(0, 1\), got 0.0; "),
        (lambda: ConditionalESS(target=1.0), ValueError, r"target must lie in \(0, 1\), got 1.0; "),
        (lambda: ConditionalESS(target=np.nan), ValueError, "target must be finite, got nan; "),
        (lambda: ConditionalESS(target="half"), TypeError, "target must be a number, got 'half'; "),
        (lambda: ConditionalESS(max_dt=0.0), ValueError, r"max_dt must lie in \(0, 1\], got 0.0; "),
        (lambda: ConditionalESS(max_dt=1.5), ValueError, r"max_dt must lie in \(0, 1\], got 1.5; "),
    ],
)
def test_bad_arguments(make: Callable[[], object], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()
