"""The samplers of the published BNN experiments with the flaws that shape their numbers. Nothing else may use them.

The released code's likelihood differs from a Bayesian network's in three ways:

- a softmax is applied twice: ln p(y | z) = ln softmax(softmax(z))_y;
- a batch of 100 rows, drawn anew for each particle and call, is not scaled up to all rows;
- its gradient is never cleared, so that the k-th call returns the sum of all k gradients so far.

The last makes an evaluation depend on all before it, which no log-density does: hence loops of their own here, made of
the library's parts. Further flaws that are repeated: PGPS calls the likelihood twice per evaluation, once for the time
derivative and once for the score; SVGD has half of its kernel's gradient; PFG's loss has |f|^2 where |f|^2 / 2 belongs;
MNIST's prior lacks its factor 1/2.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Scalar

from pgps.adjustments.langevin import langevin_step
from pgps.density import Population
from pgps.experiments.classify import FIELD_WIDTH, Sizes
from pgps.fields import MLP
from pgps.methods.svgd import median_bandwidth, stein_direction
from pgps.paths import LogWeightedShrinkage
from pgps.trainers import Gradient, mean_square

BATCH_SIZE = 100
_NUM_FLOW_STEPS = 50
_NUM_RUNGS = 10
_FIELD = MLP(FIELD_WIDTH)
# Rows that a prediction treats at once, so that its memory is bounded.
_ROWS_AT_ONCE = 512


class Posterior(NamedTuple):
    """What the released code samples."""

    features: Float[Array, "n d"]
    labels: Int[Array, " n"]
    prior_variance: Scalar | float
    """Of the initial particles."""
    prior_factor: float
    """1 for UCI; 2 for MNIST, where the prior's log-density lacks its factor 1/2."""
    num_classes: int
    hidden: int

    @property
    def dim(self) -> int:
        """The number of parameters."""
        inputs = self.features.shape[1]
        return (inputs + 1) * self.hidden + (self.hidden + 1) * self.num_classes

    def log_prior(self, x: Float[Array, "*n dim"]) -> tuple[Float[Array, "*n"], Float[Array, "*n dim"]]:
        """The prior's log-density up to a constant, and its score."""
        precision = self.prior_factor / self.prior_variance
        return -0.5 * precision * jnp.sum(x**2, axis=-1), -precision * x

    def probabilities(self, x: Float[Array, " dim"], features: Float[Array, "m d"]) -> Float[Array, "m classes"]:
        """The network's output, which ends in a softmax."""
        inputs, hidden, classes = self.features.shape[1], self.hidden, self.num_classes
        W1, b1, W2, b2 = jnp.split(x, np.cumsum([inputs * hidden, hidden, hidden * classes]))
        first = jax.nn.sigmoid(features @ W1.reshape(inputs, hidden) + b1)
        return jax.nn.softmax(first @ W2.reshape(hidden, classes) + b2)


def log_likelihood(posterior: Posterior, x: Float[Array, " dim"], rows: Int[Array, " b"]) -> Scalar:
    """The sum over some rows, through a second softmax."""
    again = jax.nn.log_softmax(posterior.probabilities(x, posterior.features[rows]))
    return jnp.sum(jnp.take_along_axis(again, posterior.labels[rows, None], axis=1))


class Call(NamedTuple):
    """The log-likelihood at every particle, and the sum of all its gradients so far."""

    values: Float[Array, " n"]
    gradients: Float[Array, "n dim"]


def call(posterior: Posterior, key: Array, x: Float[Array, "n dim"], gradients: Float[Array, "n dim"]) -> Call:
    """Call the likelihood at every particle, each on a batch of its own, and add to the gradients so far."""
    num = len(posterior.labels)
    rows = jnp.broadcast_to(jnp.arange(num), (len(x), num))
    if num > BATCH_SIZE:
        rows = jax.random.randint(key, (len(x), BATCH_SIZE), 0, num)
    value_and_grad = jax.value_and_grad(lambda x, rows: log_likelihood(posterior, x, rows))
    values, new = jax.vmap(value_and_grad)(x, rows)
    return Call(values, gradients + new)


class Flock(NamedTuple):
    """Particles, and the gradients that have gathered at each."""

    particles: Float[Array, "n dim"]
    gradients: Float[Array, "n dim"]


def _begin(posterior: Posterior, key: Array, num_particles: int) -> Flock:
    particles = jnp.sqrt(posterior.prior_variance) * jax.random.normal(key, (num_particles, posterior.dim))
    return Flock(particles, jnp.zeros_like(particles))


def _score(posterior: Posterior, key: Array, flock: Flock) -> tuple[Float[Array, "n dim"], Flock]:
    """The target's score as the released code has it."""
    gradients = call(posterior, key, flock.particles, flock.gradients).gradients
    return posterior.log_prior(flock.particles)[1] + gradients, Flock(flock.particles, gradients)


def _on_path(
    posterior: Posterior, path: LogWeightedShrinkage, t: Scalar, key: Array, flock: Flock
) -> tuple[Population, Flock]:
    """The path at every particle: its time derivative and its score come from different batches."""
    x = flock.particles
    center = jnp.zeros(posterior.dim)
    x_a, x_b = path.shrink(t, x, center)
    initial = posterior._replace(prior_factor=1.0).log_prior(x_a)
    log_prior, score = posterior.log_prior(x_b)
    keys = jax.random.split(key)
    first = call(posterior, keys[0], x_b, flock.gradients)
    second = call(posterior, keys[1], x_b, first.gradients)

    def combine(called: Call) -> PyTree:
        target = (log_prior + called.values, score + called.gradients)
        return jax.vmap(lambda *at: path.combine(t, *at))(x, initial, target)

    value, moving = combine(second), combine(first)
    population = Population.of(x, value.logdensity, value.score, moving.time_derivative)
    return population, Flock(x, second.gradients)


def _langevin(
    posterior: Posterior,
    path: LogWeightedShrinkage,
    step_size: float,
    t: Scalar,
    key: Array,
    flock: Flock,
    num_steps: Int[Array, ""] | int,
) -> Flock:
    """Langevin steps on the path at t."""

    def move(k: Int[Array, ""], flock: Flock) -> Flock:
        key_path, key_noise = jax.random.split(jax.random.fold_in(key, k))
        population, flock = _on_path(posterior, path, t, key_path, flock)
        return flock._replace(particles=langevin_step(key_noise, flock.particles, population.score, step_size))

    return jax.lax.fori_loop(0, num_steps, move, flock)


def pgps(
    posterior: Posterior, key: Array, num_particles: int, step_size: float, sizes: Sizes, alpha: float, beta: float
) -> Float[Array, "n dim"]:
    """PGPS: 50 flow steps, Langevin steps at every fifth, more of them at the end."""
    path = LogWeightedShrinkage(alpha, beta, center=0.0)
    trainer = Gradient(1e-3, sizes.training_steps, 1e-2, loss=mean_square)
    every = _NUM_FLOW_STEPS // _NUM_RUNGS
    key_particles, key_field, key = jax.random.split(key, 3)
    params = _FIELD.init(key_field, posterior.dim, jnp.float32)
    langevin = partial(_langevin, posterior, path, step_size)

    def flow(k: Int[Array, ""], carry: tuple) -> tuple:
        flock, params, memory = carry
        key_path, key_train, key_move = jax.random.split(jax.random.fold_in(key, k), 3)
        population, flock = _on_path(posterior, path, k / _NUM_FLOW_STEPS, key_path, flock)
        params, memory, _ = trainer.fit(key_train, population.logdensity[0], population, _FIELD, params, memory)
        velocity = jax.vmap(lambda x: _FIELD.apply(params, population.logdensity[0], x))(flock.particles)
        flock = flock._replace(particles=flock.particles + velocity / _NUM_FLOW_STEPS)
        due = jnp.where((k + 1) % every == 0, sizes.rung_steps, 0)
        return langevin((k + 1) / _NUM_FLOW_STEPS, key_move, flock, due), params, memory

    start = (_begin(posterior, key_particles, num_particles), params, trainer.init(params))
    flock, _, _ = jax.lax.fori_loop(0, _NUM_FLOW_STEPS, flow, start)
    return langevin(jnp.ones(()), jax.random.fold_in(key, _NUM_FLOW_STEPS), flock, sizes.final_steps).particles


def training_free(
    posterior: Posterior, key: Array, num_particles: int, step_size: float, sizes: Sizes, alpha: float, beta: float
) -> Float[Array, "n dim"]:
    """Training-free PGPS: Langevin steps at every multiple of 0.1, more of them at the end."""
    path = LogWeightedShrinkage(alpha, beta, center=0.0)
    key_particles, key = jax.random.split(key)
    langevin = partial(_langevin, posterior, path, step_size)

    def adjust(k: Int[Array, ""], flock: Flock) -> Flock:
        return langevin((k + 1) / _NUM_RUNGS, jax.random.fold_in(key, k), flock, sizes.rung_steps)

    flock = jax.lax.fori_loop(0, _NUM_RUNGS, adjust, _begin(posterior, key_particles, num_particles))
    return langevin(jnp.ones(()), jax.random.fold_in(key, _NUM_RUNGS), flock, sizes.final_steps).particles


def svgd(posterior: Posterior, key: Array, num_particles: int, step_size: float, sizes: Sizes) -> Float[Array, "n dim"]:
    """SVGD with half of its kernel's gradient."""
    key_particles, key = jax.random.split(key)

    def move(k: Int[Array, ""], flock: Flock) -> Flock:
        score, flock = _score(posterior, jax.random.fold_in(key, k), flock)
        # Half of the direction for twice the score: the kernel's gradient alone is halved.
        direction = 0.5 * stein_direction(flock.particles, 2 * score, median_bandwidth(flock.particles))
        return flock._replace(particles=flock.particles + step_size * direction)

    return jax.lax.fori_loop(0, sizes.iterations, move, _begin(posterior, key_particles, num_particles)).particles


def sgld(posterior: Posterior, key: Array, num_particles: int, step_size: float, sizes: Sizes) -> Float[Array, "n dim"]:
    """One chain; particles are the states that follow after `iterations` steps."""
    key_particles, key = jax.random.split(key)

    def move(flock: Flock, k: Int[Array, ""]) -> tuple[Flock, Float[Array, " dim"]]:
        key_batch, key_noise = jax.random.split(jax.random.fold_in(key, k))
        score, flock = _score(posterior, key_batch, flock)
        flock = flock._replace(particles=langevin_step(key_noise, flock.particles, score, step_size))
        return flock, flock.particles[0]

    flock = jax.lax.fori_loop(
        0, sizes.iterations, lambda k, flock: move(flock, k)[0], _begin(posterior, key_particles, 1)
    )
    return jax.lax.scan(move, flock, sizes.iterations + jnp.arange(num_particles))[1]


def _half_speed(velocity: Float[Array, "n dim"], divergence: Float[Array, " n"], population: Population) -> Scalar:
    """PFG's loss as released: |f|^2 in place of |f|^2 / 2."""
    gain = jnp.sum(population.score * velocity, axis=-1) + divergence
    return jnp.mean(jnp.sum(velocity**2, axis=-1) - gain)


def pfg(posterior: Posterior, key: Array, num_particles: int, step_size: float, sizes: Sizes) -> Float[Array, "n dim"]:
    """PFG with five training steps per iteration, after many at first."""
    key_particles, key_field, key = jax.random.split(key, 3)
    params = _FIELD.init(key_field, posterior.dim, jnp.float32)
    trainer = Gradient(1e-3, 5, None, loss=_half_speed)

    def move(k: Int[Array, ""], carry: tuple) -> tuple:
        flock, params, memory = carry
        key_batch, key_train = jax.random.split(jax.random.fold_in(key, k))
        score, flock = _score(posterior, key_batch, flock)
        nothing = jnp.zeros(len(score))
        population = Population.of(flock.particles, nothing, score, nothing)
        first = eqx.tree_at(
            lambda trainer: trainer.max_steps, trainer, jnp.where(k == 0, sizes.first_pfg_training_steps, 5)
        )
        params, memory, _ = first.fit(key_train, nothing[0], population, _FIELD, params, memory)
        velocity = jax.vmap(lambda x: _FIELD.apply(params, nothing[0], x))(flock.particles)
        return flock._replace(particles=flock.particles + step_size * velocity), params, memory

    start = (_begin(posterior, key_particles, num_particles), params, trainer.init(params))
    return jax.lax.fori_loop(0, sizes.iterations, move, start)[0].particles


SAMPLERS: dict[str, Callable[..., Float[Array, "n dim"]]] = {
    "pgps": pgps,
    "training-free": training_free,
    "svgd": svgd,
    "sgld": sgld,
    "pfg": pfg,
}


@eqx.filter_jit
def sample(
    name: str, posterior: Posterior, key: Array, num_particles: int, step_size: Array, sizes: Sizes, *path: float
) -> Float[Array, "n dim"]:
    """The particles of one published sampler."""
    return SAMPLERS[name](posterior, key, num_particles, step_size, sizes, *path)


def predict(
    posterior: Posterior, particles: Float[Array, "n dim"], features: Float[np.ndarray, "m d"]
) -> Float[np.ndarray, "m classes"]:
    """The networks' mean probabilities, after the first softmax."""
    blocks = np.split(features, range(_ROWS_AT_ONCE, len(features), _ROWS_AT_ONCE))
    return np.concatenate([np.asarray(_predict(posterior, particles, jnp.asarray(block, float))) for block in blocks])


@eqx.filter_jit
def _predict(
    posterior: Posterior, particles: Float[Array, "n dim"], features: Float[Array, "m d"]
) -> Float[Array, "m classes"]:
    return jnp.mean(jax.vmap(lambda x: posterior.probabilities(x, features))(particles), axis=0)
