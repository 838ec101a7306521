"""Algorithm 3 against a plain transcription of it, Langevin dynamics, and the contract that all methods keep."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pgps
from helpers import METHODS, HostDensity
from pgps import methods
from pgps.density import Problem


def skewed(x):
    return -0.5 * jnp.sum((x - jnp.array([1.0, -2.0])) ** 2 / jnp.array([0.5, 2.0]))


def transcription(key, method, initial, logdensity, num_particles):
    """Algorithms 1-3 as one would write them down: Python loops, autodiff, no reuse. Returns particles and times."""
    path, trainer, langevin = method.path, method.trainer, method.adjustment

    def log_path(t, x):
        a, b = 1 - path.alpha * t, path.beta + (1 - path.beta) * t
        return (1 - t) * initial.logdensity(a * x) + t * logdensity(x / b)

    def network(theta, x):
        (W1, b1), (W2, b2) = theta
        return W2 @ jax.nn.sigmoid(W1 @ x + b1) + b2

    def loss(theta, t, particles):
        def derivative(x):
            return jax.grad(log_path)(t, x)

        def residual(x):
            score = jax.grad(log_path, argnums=1)(t, x)
            divergence = jnp.trace(jax.jacfwd(lambda x: network(theta, x))(x))
            return derivative(x) + score @ network(theta, x) + divergence

        center = jnp.mean(jax.vmap(derivative)(particles))
        return jnp.mean((jax.vmap(residual)(particles) - center) ** 2)

    optimizer = optax.adam(trainer.learning_rate)
    loss_and_gradient = jax.jit(jax.value_and_grad(loss))
    velocity = jax.jit(jax.vmap(network, in_axes=(None, 0)))
    score = jax.jit(jax.vmap(jax.grad(log_path, argnums=1), in_axes=(None, 0)))
    update = jax.jit(optimizer.update)
    key_init, key_steps = jax.random.split(key)
    key_particles, key_field = jax.random.split(key_init)
    x = Problem.of(logdensity, initial).draw(key_particles, num_particles)
    params = method.field.init(key_field, 2, x.dtype)
    theta = ((params.hidden[0].weight.T, params.hidden[0].bias), tuple(params.output))
    moments = optimizer.init(theta)
    t, times = 0.0, []
    while t < 1:
        _, key_adjust = jax.random.split(jax.random.fold_in(key_steps, len(times)))
        for _ in range(trainer.max_steps):
            _, gradient = loss_and_gradient(theta, t, x)
            updates, moments = update(gradient, moments)
            theta = optax.apply_updates(theta, updates)
            if loss_and_gradient(theta, t, x)[0] < trainer.threshold:
                break
        phi = np.asarray(velocity(theta, x))
        dt = len(x) * method.stepper.psi / float(np.sum(np.linalg.norm(phi, axis=1)))
        dt = min(dt, 1 - t, method.stepper.max_dt)
        x, t = x + dt * phi, t + dt
        times.append(t)
        for k in range(langevin.num_steps):
            xi = jax.random.normal(jax.random.fold_in(key_adjust, k), x.shape, x.dtype)
            x = x + langevin.step_size * score(t, x) + np.sqrt(2 * langevin.step_size) * xi
    return x, times


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
@pytest.mark.parametrize("threshold", [1e-6, 9.0])
def test_algorithm_3_equals_its_transcription(x64, threshold):
    initial = pgps.Normal(0.0, 1.5, shape=(2,))
    method = pgps.paper(
        0.6, 0.7, 0.4, max_dt=0.3, width=5, max_training_steps=12, threshold=threshold, langevin_steps=2
    )
    key = jax.random.key(3)
    result = pgps.sample(skewed, initial, key=key, num_particles=20, method=method)
    particles, times = transcription(key, method, initial, skewed, 20)
    np.testing.assert_allclose(result.trace["t"], times, rtol=1e-9)
    np.testing.assert_allclose(result.particles, particles, rtol=1e-7, atol=1e-8)
    if threshold == 9.0:
        # Both ways out of the training loop were taken.
        assert 1 <= result.trace["training_steps"].min() < result.trace["training_steps"].max() == 12


def test_langevin_dynamics_equals_its_formula(x64):
    initial = pgps.Normal(0.0, 1.0, shape=(2,))
    method = pgps.methods.Langevin(step_size=0.05, num_steps=3)
    key_init, key_steps = jax.random.split(jax.random.key(0))
    x = Problem.of(skewed, initial).draw(key_init, 6)
    score = jax.jit(jax.vmap(jax.grad(skewed)))
    for k in range(3):
        xi = jax.random.normal(jax.random.fold_in(key_steps, k), x.shape, x.dtype)
        x = x + 0.05 * score(x) + np.sqrt(0.1) * xi
    result = pgps.sample(skewed, initial, key=jax.random.key(0), num_particles=6, method=method)
    np.testing.assert_allclose(result.particles, x, rtol=1e-12)
    assert result.num_evaluations.gradients == 6 * 4


# Twelve particles are too few for an evidence, and it is said.
@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
@pytest.mark.parametrize("name", METHODS)
def test_contract(name):
    """Every method: completes, same key same result, ends at t = 1, counts evaluations, keeps shapes."""
    # The density counts its own calls on the host; it has no forward mode either.
    method, density, num = METHODS[name], HostDensity(), 12
    runs, calls = [], []
    for _ in range(2):
        density.reset()
        runs.append(
            pgps.sample(density, pgps.Normal(shape=(2,)), key=jax.random.key(1), num_particles=num, method=method)
        )
        jax.effects_barrier()
        calls.append((density.gradients, density.values))
    np.testing.assert_array_equal(runs[0].particles, runs[1].particles)
    result = runs[0]
    assert result.status == pgps.Status.COMPLETED
    assert result.t == 1.0 == result.trace["t"][-1]
    assert np.all(np.diff(result.trace["t"]) > 0)
    assert result.particles.shape == (num, 2)
    assert np.all(np.isfinite(result.particles))
    assert result.summary()
    assert calls == 2 * [(result.num_evaluations.gradients, result.num_evaluations.values)]
    gradients, values = calls[0]
    assert result.num_evaluations.total == gradients + values
    num_steps, moves = len(result.trace["t"]), int(np.sum(result.trace.get("adjustment_steps", 0)))
    if isinstance(method, methods.TemperedSMC):
        # Reweighting and the ladder cost nothing: both ends of the path are known at each particle.
        assert moves == getattr(method.moves, "num_steps", 0) * num_steps
        assert gradients == num * (1 + moves * getattr(method.moves, "num_leapfrog", 1))
        assert values == 0
    elif getattr(method, "weighing", None) is not None:
        # A step that was halved, or stood still, has another price.
        assert gradients > num
    else:
        assert gradients == method.num_evaluated(num) * (1 + num_steps + moves)


STEPPED = [methods.Langevin, methods.SGLD, methods.MALA, methods.AnnealedLangevin, methods.SVGD, methods.PFG]
SMALL = pgps.trainers.Gradient(1e-2, 20, None)


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        *[
            (partial(kind, **{name: value}), error, [name, str(value), remedy])
            for kind in STEPPED
            for name, value, error, remedy in [
                ("step_size", 0.0, ValueError, "above 0"),
                ("step_size", -1.0, ValueError, "above 0"),
                ("step_size", float("nan"), ValueError, "finite"),
                ("step_size", float("inf"), ValueError, "finite"),
                ("step_size", "small", TypeError, "real number"),
                ("num_steps", 0, ValueError, "at least 1"),
                ("num_steps", 2.5, TypeError, "integer"),
            ]
        ],
        *[
            (partial(methods.MALA, target_acceptance=value), ValueError, ["target_acceptance", str(value)])
            for value in (0.0, 1.0, -0.1, 1.5, float("nan"))
        ],
        *[
            (partial(methods.SVGD, bandwidth=value), ValueError, ["bandwidth", str(value)])
            for value in (0.0, -1.0, float("nan"))
        ],
        (lambda: methods.AnnealedLangevin(max_temperature=0.5), ValueError, ["max_temperature", "0.5", "at least 1"]),
        (lambda: methods.AnnealedLangevin(max_temperature=np.nan), ValueError, ["max_temperature", "nan", "finite"]),
        (lambda: methods.AnnealedLangevin(num_temperatures=1), ValueError, ["num_temperatures", "1", "at least 2"]),
        (lambda: methods.AnnealedLangevin(num_steps=5, num_temperatures=6), ValueError, ["num_temperatures", "6"]),
        (lambda: methods.PFG(trainer=SMALL), ValueError, ["trainer", "functional_gradient", "mean_square"]),
        (
            lambda: methods.PFG(trainer=pgps.trainers.Gradient(threshold=1e-2, loss=methods.functional_gradient)),
            ValueError,
            ["trainer", "threshold=None", "0.01"],
        ),
        (lambda: methods.PFG(trainer=pgps.trainers.NoTraining()), TypeError, ["trainer", "Gradient"]),
        (lambda: methods.PFG(field="mlp"), TypeError, ["field", "'mlp'", "pgps.fields"]),
        (lambda: methods.PFG(first_training_steps=0), ValueError, ["first_training_steps", "0", "at least 1"]),
        (
            lambda: methods.TemperedSMC(moves=pgps.adjustments.Langevin()),
            TypeError,
            ["moves", "Langevin", "MALA", "HMC"],
        ),
        (lambda: methods.TemperedSMC(moves=pgps.adjustments.NoAdjustment()), TypeError, ["moves", "NoAdjustment"]),
        (lambda: methods.TemperedSMC(moves=methods.MALA()), TypeError, ["moves", "adjustments.MALA"]),
        (lambda: methods.TemperedSMC(ladder=0.1), TypeError, ["ladder", "0.1", "pgps.steppers"]),
        (lambda: methods.TemperedSMC(resample_below=1.5), ValueError, ["resample_below", "1.5", "[0, 1]"]),
        (lambda: methods.TemperedSMC(resample_below=-0.5), ValueError, ["resample_below", "-0.5", "[0, 1]"]),
        (lambda: methods.TemperedSMC(max_steps=0), ValueError, ["max_steps", "0", "at least 1"]),
    ],
)
def test_bad_arguments(make, error, words):
    """Refused as the method is made, long before anything is compiled, on one line."""
    with pytest.raises(error) as caught:
        make()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
