"""Algorithm 3: path-guided particle-based sampling.

    repeat
        train phi_t on the particles            Eq. 6           trainers, fields
        choose dt                               Algorithm 1     steppers
        x <- x + dt phi_t(x);  t <- t + dt
        adjust x towards p_t                    Algorithm 2     adjustments
    until t = 1

along a path p_t (Eq. 5, paths). The path is evaluated once per particle after each move, and what comes out serves the
adjustment, the next training and the check for faults.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from pgps import _checks
from pgps.adjustments.base import AbstractAdjustment
from pgps.density import Evaluations, Population, Problem
from pgps.fields.base import AbstractField
from pgps.methods.base import AbstractMethod, Row, State, Trace
from pgps.paths.base import AbstractPath, evaluate
from pgps.steppers.base import AbstractStepper, Clock
from pgps.trainers.base import AbstractTrainer
from pgps.trainers.residual import evaluate_field, residual


class Memory(NamedTuple):
    """The field's parameters theta, and what the trainer and the adjustment carry from one t to the next."""

    params: PyTree
    trainer: PyTree
    adjustment: PyTree


class PGPS(AbstractMethod):
    """Algorithm 3, put together from parts. `pgps.paper` and `pgps.training_free` are ready-made.

    Args:
        path: The path p_t.
        field: The vector field phi_t.
        trainer: How the field is fitted at each t.
        stepper: How far t moves.
        adjustment: How particles are adjusted after each move.
        max_steps: Stop after this many time steps, wherever t is then.
    """

    path: AbstractPath
    field: AbstractField
    trainer: AbstractTrainer
    stepper: AbstractStepper
    adjustment: AbstractAdjustment
    max_steps: int = 10_000

    def __check_init__(self):
        _checks.instance("path", self.path, AbstractPath, "pgps.paths")
        _checks.instance("field", self.field, AbstractField, "pgps.fields")
        _checks.instance("trainer", self.trainer, AbstractTrainer, "pgps.trainers")
        _checks.instance("stepper", self.stepper, AbstractStepper, "pgps.steppers")
        _checks.instance("adjustment", self.adjustment, AbstractAdjustment, "pgps.adjustments")
        _checks.whole("max_steps", self.max_steps, at_least=1)

    @property
    def step_limit(self) -> int:
        """The largest number of time steps."""
        return self.max_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law, evaluated at t = 0, and a fresh field."""
        key_particles, key_field = jax.random.split(key)
        dtype = problem.structure.dtype
        clock = Clock.start(dtype)
        params = self.field.init(key_field, problem.structure.dim, dtype)
        return State(
            population=evaluate(self.path, clock.t, problem.draw(key_particles, num_particles), problem),
            clock=clock,
            num_steps=jnp.asarray(0),
            evaluations=Evaluations(gradients=1),
            memory=Memory(params, self.trainer.init(params), self.adjustment.init(dtype)),
        )

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One pass through the loop of Algorithm 3."""
        key_train, key_adjust = jax.random.split(key)
        key_field = jax.random.fold_in(key_train, 0)
        t, particles = state.clock.t, state.population.particles

        params, trainer, training = self.trainer.fit(
            key_train, t, state.population, self.field, state.memory.params, state.memory.trainer
        )
        velocity, divergence = evaluate_field(self.field, params, t, particles, key_field)

        rates = residual(velocity, divergence, state.population)
        clock, dt = state.clock.advance(self.stepper.time_step(t, velocity, rates, jnp.zeros_like(rates)))

        def evaluate_now(particles: Float[Array, "n dim"]) -> Population:
            return evaluate(self.path, clock.t, particles, problem)

        population, memory, adjustment = self.adjustment.adjust(
            key_adjust, t, clock.t, evaluate_now(particles + dt * velocity), state.memory.adjustment, evaluate_now
        )

        row = {
            "t": clock.t,
            "dt": dt,
            "loss": training.loss,
            "training_steps": training.num_steps,
            "converged": training.converged,
            "field_norm": jnp.mean(jnp.linalg.norm(velocity, axis=-1)),
            "adjustment_steps": adjustment.num_steps,
            "acceptance": adjustment.acceptance,
        }
        state = State(
            population=population,
            clock=clock,
            num_steps=state.num_steps + 1,
            evaluations=state.evaluations + Evaluations(gradients=1) + adjustment.evaluations,
            memory=Memory(params, trainer, memory),
        )
        return state, row

    def doubts(self, trace: Trace) -> list[str]:
        """Training that ended above its threshold."""
        missed = ~trace["converged"]
        if not missed.any():
            return []
        worst = np.argmax(np.where(missed, trace["loss"], -np.inf))
        started = trace["t"][worst] - trace["dt"][worst]
        return [
            f"training ended above its threshold at {missed.sum()} of {len(missed)} steps (worst: a loss of "
            f"{trace['loss'][worst]:.3g} at t = {started:.3g}), so the particles may lag behind the path; "
            "give the trainer more steps, or take smaller ones along the path"
        ]
