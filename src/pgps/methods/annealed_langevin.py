"""Annealed Langevin dynamics: x <- x + delta grad ln p1(x) + sqrt(2 delta T) xi, with T falling to 1 on a ladder.

At temperature T its stationary law is p1^(1/T), up to the step size's error, so that chains cross between modes while T
is high. It is simulated annealing that stops at T = 1: mode masses are those of the last temperature at which modes
still exchanged particles.
"""

import jax.numpy as jnp
from jaxtyping import Array, Scalar

from pgps import _checks
from pgps.adjustments.langevin import langevin_step
from pgps.density import Problem, evaluate_target
from pgps.methods.base import AbstractMethod, Row, State, Trace, begin_on_target, estimation_key, proceed


class AnnealedLangevin(AbstractMethod):
    """Unadjusted Langevin dynamics on a ladder of temperatures, equal ratios apart, that ends at 1.

    Args:
        step_size: The step size delta.
        num_steps: The number of steps, shared equally by the temperatures.
        max_temperature: The first temperature.
        num_temperatures: The number of temperatures.
    """

    step_size: float = 1e-2
    num_steps: int = 1000
    max_temperature: float = 10.0
    num_temperatures: int = 10

    def __check_init__(self):
        _checks.positive("step_size", self.step_size)
        _checks.whole("num_steps", self.num_steps, at_least=1)
        if _checks.number("max_temperature", self.max_temperature) < 1:
            raise ValueError(
                f"max_temperature must be at least 1, got {_checks.show(self.max_temperature)}; "
                "the ladder falls from it to 1"
            )
        _checks.whole("num_temperatures", self.num_temperatures, at_least=2, at_most=self.num_steps)

    @property
    def step_limit(self) -> int:
        """The number of steps."""
        return self.num_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law."""
        return begin_on_target(key, problem, num_particles, stochastic=True)

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One Langevin step at the temperature that is due."""
        temperature = self._temperature(state)
        # A step of size T delta on ln p1 / T.
        score = state.population.score / temperature
        particles = langevin_step(key, state.population.particles, score, temperature * self.step_size)
        state = proceed(state, evaluate_target(particles, problem, estimation_key(key)), self.num_steps)
        return state, {"t": state.clock.t, "temperature": temperature}

    def _temperature(self, state: State) -> Scalar:
        rung = state.num_steps * self.num_temperatures // self.num_steps
        share = (rung / (self.num_temperatures - 1)).astype(state.clock.t.dtype)
        return jnp.asarray(self.max_temperature, share.dtype) ** (1 - share)

    def doubts(self, trace: Trace) -> list[str]:
        """None: nothing in the trace tells whether the chains have mixed."""
        return []
