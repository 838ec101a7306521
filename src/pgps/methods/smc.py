"""Tempered sequential Monte Carlo, along the geometric path p_t = p0^(1-t) p1^t (Del Moral, Doucet and Jasra 2006).

    repeat
        choose dt                                       steppers: ConditionalESS (adaptive), Ladder or Fixed
        ln w <- ln w + dt (ln p1(x) - ln p0(x))         weights
        resample, if the weights are too unequal        weights
        move x by a kernel that leaves p_t as it is     adjustments: MALA or HMC
    until t = 1

Path-guided sampling with no field, and with exact weights. Both ends of the path are kept at each particle, so that the
ladder, the weights and the change of t cost no evaluation: only moves do.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgps import _checks
from pgps.adjustments.base import AbstractAdjustment
from pgps.adjustments.mala import MALA
from pgps.density import Evaluations, Problem
from pgps.methods.base import AbstractMethod, Row, State, Trace
from pgps.methods.mala import refused
from pgps.noise import split
from pgps.paths.base import evaluate
from pgps.paths.geometric import Geometric
from pgps.steppers.base import AbstractStepper, Clock
from pgps.steppers.conditional_ess import ConditionalESS
from pgps.weights import Weights, pareto_k
from pgps.weights.pareto import LARGEST_K

_PATH = Geometric()
_LEAST_ACCEPTANCE = 0.1
_FEWEST_ANCESTORS = 10


class TemperedSMC(AbstractMethod):
    """Tempered SMC with Metropolis-adjusted moves, systematic resampling and the log evidence.

    Args:
        ladder: How far t moves: `steppers.ConditionalESS` for an adaptive ladder, `steppers.Ladder` or
            `steppers.Fixed` for a fixed one.
        moves: The moves at each t: `adjustments.MALA` or `adjustments.HMC`.
        resample_below: Resample when the effective sample size falls below this share of the particles.
        max_steps: Stop after this many time steps, wherever t is then.
    """

    ladder: AbstractStepper = ConditionalESS()
    moves: AbstractAdjustment = MALA()
    resample_below: float = 0.5
    max_steps: int = 10_000

    def __check_init__(self):
        _checks.instance("ladder", self.ladder, AbstractStepper, "pgps.steppers")
        if not (isinstance(self.moves, AbstractAdjustment) and self.moves.leaves_invariant()):
            raise TypeError(
                f"moves must be adjustments.MALA or adjustments.HMC, got {_checks.show(self.moves)}; "
                "others do not leave p_t as it is, so the weights would be wrong"
            )
        _checks.within("resample_below", self.resample_below, 0, 1)
        _checks.whole("max_steps", self.max_steps, at_least=1)

    @property
    def step_limit(self) -> int:
        """The largest number of time steps."""
        return self.max_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law, with equal weights."""
        dtype = problem.structure.dtype
        clock = Clock.start(dtype)
        particles = problem.draw(key, num_particles)
        population = evaluate(_PATH, clock.t, particles, problem)
        return State(
            population=population,
            clock=clock,
            num_steps=jnp.asarray(0),
            evaluations=Evaluations(gradients=1),
            memory=self.moves.init(population),
            weights=Weights.equal(num_particles, dtype),
        )

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """Reweight, resample and move."""
        key_resample, key_move = split(key)
        assert state.weights is not None
        population, t = state.population, state.clock.t

        rates = population.time_derivative
        still = jnp.zeros_like(population.particles)
        clock, dt = state.clock.advance(self.ladder.time_step(t, still, rates, state.weights.log_weights))

        weights = state.weights.reweighted(dt * rates)
        ess, k = weights.ess, pareto_k(weights.log_weights)
        weights, indices = weights.resampled(key_resample, self.resample_below)
        population = _PATH.retime(clock.t, population.take(indices))

        population, memory, adjustment = self.moves.adjust(
            key_move,
            t,
            clock.t,
            population,
            state.memory,
            lambda x, key=None: evaluate(_PATH, clock.t, x, problem, key),
        )
        row = {
            "t": clock.t,
            "dt": dt,
            "ess": ess,
            "pareto_k": k,
            "log_evidence": weights.log_evidence,
            "num_ancestors": weights.num_ancestors,
            "adjustment_steps": adjustment.num_steps,
            "acceptance": adjustment.acceptance,
            "covered": adjustment.covered,
            "faults": adjustment.faults,
        }
        state = State(
            population=population,
            clock=clock,
            num_steps=state.num_steps + 1,
            evaluations=state.evaluations + adjustment.evaluations,
            memory=memory,
            weights=weights,
        )
        return state, row

    def doubts(self, trace: Trace) -> list[str]:
        """Moves that were refused, and particles that all descend from a few."""
        return weight_doubts(trace)


def weight_doubts(trace: Trace) -> list[str]:
    """What in the trace of a run with weights should be doubted."""
    if not len(trace["t"]):
        return []
    doubts = refused(trace)
    worst = int(np.argmin(trace["acceptance"]))
    if trace["acceptance"][worst] < _LEAST_ACCEPTANCE:
        doubts.append(
            f"only {trace['acceptance'][worst]:.1%} of the moves were accepted at t = {trace['t'][worst]:.3g}, so "
            "copies of particles stayed copies; take smaller steps, or more of them"
        )
    # At the end, and when fewest were effective: resampling hides what weights were like before.
    if (k := max(trace["pareto_k"][-1], trace["pareto_k"][np.argmin(trace["ess"])])) > LARGEST_K:
        doubts.append(
            f"the largest weights have a heavy tail (Pareto k = {k:.2f}, above {LARGEST_K}), so means over the "
            "particles, the evidence and its error may hang on a few of them; take more particles or smaller steps"
        )
    left = int(trace["num_ancestors"][-1])
    if left < _FEWEST_ANCESTORS:
        doubts.append(
            f"all particles descend from {left} of the first ones, so modes may be lost and the evidence's "
            "error is a guess; take more particles, a finer ladder, or an initial law nearer to the target"
        )
    return doubts
