"""Langevin dynamics (LD), the paper's first baseline: x <- x + delta grad ln p1(x) + sqrt(2 delta) xi."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from pgps import _checks
from pgps.adjustments.langevin import langevin_step
from pgps.density import Evaluations, Problem, evaluate_target
from pgps.methods.base import AbstractMethod, Row, State, Trace
from pgps.steppers.base import Clock


class Langevin(AbstractMethod):
    """Unadjusted Langevin dynamics on the target, one chain per particle, started from the initial law.

    Args:
        step_size: The step size delta.
        num_steps: The number of steps.
    """

    step_size: float = 1e-2
    num_steps: int = 1000

    def __check_init__(self):
        _checks.positive("step_size", self.step_size)
        _checks.whole("num_steps", self.num_steps, at_least=1)

    @property
    def step_limit(self) -> int:
        """The number of steps."""
        return self.num_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law."""
        return State(
            population=evaluate_target(problem.draw(key, num_particles), problem),
            clock=Clock.start(problem.structure.dtype),
            num_steps=jnp.asarray(0),
            evaluations=Evaluations(gradients=1),
            memory=None,
        )

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One Langevin step; the clock shows the share of the steps that are done."""
        population = state.population
        particles = langevin_step(key, population.particles, population.score, self.step_size)
        num_steps = state.num_steps + 1
        clock = eqx.tree_at(lambda clock: clock.t, state.clock, (num_steps / self.num_steps).astype(particles.dtype))
        evaluations = state.evaluations + Evaluations(gradients=1)
        return State(evaluate_target(particles, problem), clock, num_steps, evaluations, None), {"t": clock.t}

    def doubts(self, trace: Trace) -> list[str]:
        """None: nothing in the trace tells whether the chains have mixed."""
        return []
