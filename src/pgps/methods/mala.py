"""The Metropolis-adjusted Langevin algorithm on the target, one chain per particle."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgps.adjustments.mala import mala_step
from pgps.adjustments.metropolis import check_moves
from pgps.density import Problem, evaluate_target
from pgps.methods.base import AbstractMethod, Row, State, Trace, begin_on_target, proceed

# The step size's adaptation fades as k^-0.6, so that the chains' stationary law stays the target.
_FADING = 0.6


class MALA(AbstractMethod):
    """Metropolis-adjusted Langevin dynamics, started from the initial law.

    Args:
        step_size: The step size delta; the first one, if it is adapted.
        num_steps: The number of steps.
        target_acceptance: The acceptance rate that the step size is adapted to; None keeps the step size.
    """

    step_size: float = 1e-2
    num_steps: int = 1000
    target_acceptance: float | None = None

    def __check_init__(self):
        check_moves(self.step_size, self.num_steps, self.target_acceptance)

    @property
    def step_limit(self) -> int:
        """The number of steps."""
        return self.num_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law, and the logarithm of the step size."""
        log_step_size = jnp.log(jnp.asarray(self.step_size, problem.structure.dtype))
        return begin_on_target(key, problem, num_particles, log_step_size)

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One move; the clock shows the share of the steps that are done."""
        step_size = jnp.exp(state.memory)
        move = mala_step(key, state.population, step_size, lambda x, key=None: evaluate_target(x, problem, key))
        log_step_size = state.memory
        if self.target_acceptance is not None:
            log_step_size += (move.acceptance - self.target_acceptance) / (state.num_steps + 1.0) ** _FADING
        state = proceed(state, move.population, self.num_steps, log_step_size)
        row = {"t": state.clock.t, "acceptance": move.acceptance, "step_size": step_size, "faults": move.faults}
        return state, row

    def doubts(self, trace: Trace) -> list[str]:
        """Chains that stood still, crept, or met nan."""
        doubts = refused(trace)
        # The second half: at first chains are on their way to the target.
        acceptance = float(np.mean(trace["acceptance"][len(trace["t"]) // 2 :]))
        if acceptance < 0.2:
            doubts.append(f"only {acceptance:.1%} of the proposals were accepted; take smaller steps")
        if acceptance > 0.99:
            doubts.append(f"{acceptance:.1%} of the proposals were accepted, so chains creep; take larger steps")
        return doubts


def refused(trace: Trace) -> list[str]:
    """A word on proposals that were refused since the density is nan there."""
    faults = int(np.sum(trace["faults"]))
    if faults == 0:
        return []
    return [f"{faults} proposals were refused since the log-density or its gradient is nan there; check it for 0/0"]
