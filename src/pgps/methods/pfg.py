"""Preconditioned functional gradient flow (PFG; Dong, Wang, Lin and Zhang 2023): x <- x + delta f(x).

A field f is trained at every step to maximise

    E[ f . grad ln p1 + div f ] - 1/2 E[ f' H f ],        whose maximiser is f = H^-1 grad ln(p1 / p),

the Wasserstein gradient of KL(p | p1), preconditioned by H, where p is the particles' law. H is the slope of the
regression of -grad ln p1 on x over the particles: E[-grad^2 ln p1] for a Gaussian target, with no further evaluation.
With y = H^(1/2) x a preconditioned flow of x is a plain one of y, and that is how it is trained.

The published experiments have no preconditioner, and lack the factor 1/2, which halves the speed; here it is whole.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from pgps import _checks
from pgps.density import Population, Problem, evaluate_target
from pgps.fields.base import AbstractField
from pgps.fields.mlp import MLP
from pgps.methods.base import AbstractMethod, Row, State, Trace, begin_on_target, estimation_key, proceed
from pgps.trainers.gradient import Gradient

# The least eigenvalue of H, as a share of the largest: between modes the target curves the other way.
_LEAST_CURVATURE = 1e-3


def functional_gradient(
    velocity: Float[Array, "n dim"], divergence: Float[Array, " n"], population: Population
) -> Scalar:
    """The loss: mean_i [ |f|^2 / 2 - f . grad ln p1 - div f ] over the particles inside the support."""
    alive = population.alive
    gain = jnp.sum(population.score * velocity, axis=-1) + divergence
    terms = 0.5 * jnp.sum(velocity**2, axis=-1) - gain
    return jnp.sum(jnp.where(alive, terms, 0.0)) / jnp.maximum(jnp.sum(alive), 1)


class Memory(NamedTuple):
    """The field's parameters, and what the trainer carries from one step to the next."""

    params: PyTree
    trainer: PyTree


class PFG(AbstractMethod):
    """Preconditioned functional gradient flow, started from the initial law.

    Args:
        step_size: The step size delta.
        num_steps: The number of steps.
        field: The field that is trained.
        trainer: How it is trained at each step; its loss is PFG's own.
        first_training_steps: Training steps before the first move.
        precondition: Whether to precondition by H; without it H = I.
    """

    step_size: float = 1e-2
    num_steps: int = 1000
    field: AbstractField = MLP(64)
    trainer: Gradient = Gradient(1e-2, 20, None, loss=functional_gradient)
    first_training_steps: int = 1000
    precondition: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        _checks.positive("step_size", self.step_size)
        _checks.whole("num_steps", self.num_steps, at_least=1)
        _checks.instance("field", self.field, AbstractField, "pgps.fields")
        _checks.instance("trainer", self.trainer, Gradient, "trainers.Gradient")
        if self.trainer.loss is not functional_gradient or self.trainer.threshold is not None:
            raise ValueError(
                "trainer must have loss=methods.functional_gradient and threshold=None, got "
                f"loss={_checks.show(self.trainer.loss)} and threshold={self.trainer.threshold}; PFG needs both"
            )
        _checks.whole("first_training_steps", self.first_training_steps, at_least=1)

    @property
    def step_limit(self) -> int:
        """The number of steps."""
        return self.num_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law, and a field trained on them."""
        key_particles, key_field, key_train = jax.random.split(key, 3)
        params = self.field.init(key_field, problem.structure.dim, problem.structure.dtype)
        state = begin_on_target(key_particles, problem, num_particles, stochastic=True)
        first = eqx.tree_at(lambda trainer: trainer.max_steps, self.trainer, self.first_training_steps)
        population, _ = self._preconditioned(state.population)
        params, trainer, _ = first.fit(
            key_train, state.clock.t, population, self.field, params, self.trainer.init(params)
        )
        return eqx.tree_at(lambda s: s.memory, state, Memory(params, trainer), is_leaf=lambda leaf: leaf is None)

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """Train, and take one step along the field; the clock shows the share of the steps that are done."""
        t = state.clock.t
        population, back = self._preconditioned(state.population)
        params, trainer, training = self.trainer.fit(key, t, population, self.field, *state.memory)
        velocity = jax.vmap(lambda x: self.field.apply(params, t, x))(population.particles)
        velocity = velocity if back is None else velocity @ back
        particles = state.population.particles + self.step_size * velocity
        state = proceed(
            state, evaluate_target(particles, problem, estimation_key(key)), self.num_steps, Memory(params, trainer)
        )
        row = {
            "t": state.clock.t,
            "loss": training.loss,
            "training_steps": training.num_steps,
            "field_norm": jnp.mean(jnp.linalg.norm(velocity, axis=-1)),
        }
        return state, row

    def _preconditioned(self, population: Population) -> tuple[Population, Float[Array, "dim dim"] | None]:
        """The population in y = H^(1/2) x, and H^(-1/2), which takes velocities back to x; None for H = I."""
        if not self.precondition:
            return population, None
        root, inverse_root = _roots(curvature(population))
        y = Population.of(
            population.particles @ root,
            population.logdensity,
            population.score @ inverse_root,
            population.time_derivative,
        )
        return y, inverse_root

    def doubts(self, trace: Trace) -> list[str]:
        """None: nothing in the trace tells how far the particles' law is from the target."""
        return []


def curvature(population: Population) -> Float[Array, "dim dim"]:
    """H: the slope of the regression of -score on x over the particles inside the support, made symmetric."""
    weight = population.alive / jnp.maximum(jnp.sum(population.alive), 1)
    x = population.particles - weight @ population.particles
    covariance = (weight[:, None] * x).T @ x
    slope = jnp.linalg.lstsq(covariance, (weight[:, None] * x).T @ -population.score)[0]
    return 0.5 * (slope + slope.T)


def _roots(matrix: Float[Array, "dim dim"]) -> tuple[Float[Array, "dim dim"], Float[Array, "dim dim"]]:
    """The symmetric square root of a matrix and its inverse, with its eigenvalues lifted above a floor."""
    values, vectors = jnp.linalg.eigh(matrix)
    largest = jnp.max(values)
    values = jnp.where(largest > 0, jnp.maximum(values, _LEAST_CURVATURE * largest), 1.0)
    roots = jnp.sqrt(values)
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T
