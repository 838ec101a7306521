"""Langevin dynamics (LD), the paper's first baseline: x <- x + delta grad ln p1(x) + sqrt(2 delta) xi."""

from jaxtyping import Array

from pgps import _checks
from pgps.adjustments.langevin import langevin_step
from pgps.density import Problem, evaluate_target
from pgps.methods.base import AbstractMethod, Row, State, Trace, begin_on_target, estimation_key, proceed


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
        return begin_on_target(key, problem, num_particles, stochastic=True)

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One Langevin step; the clock shows the share of the steps that are done."""
        particles = langevin_step(key, state.population.particles, state.population.score, self.step_size)
        state = proceed(state, evaluate_target(particles, problem, estimation_key(key)), self.num_steps)
        return state, {"t": state.clock.t}

    def doubts(self, trace: Trace) -> list[str]:
        """None: nothing in the trace tells whether the chains have mixed."""
        return []
