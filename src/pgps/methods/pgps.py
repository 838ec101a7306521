"""Algorithm 3: path-guided particle-based sampling.

    repeat
        train phi_t on the particles            Eq. 6           trainers, fields
        choose dt                               Algorithm 1     steppers
        x <- x + dt phi_t(x);  t <- t + dt
        weigh and resample, if asked to                         weights
        adjust x towards p_t                    Algorithm 2     adjustments
    until t = 1

along a path p_t (Eq. 5, paths). The path is evaluated once per particle after each move, and what comes out serves the
weights, the adjustment, the next training and the check for faults.

With weights, which the paper has not, particles live on two islands, and the field that moves those of one is trained
on the other: it cannot seem better than it is. The increment of a log-weight is exact for any field:

    ln w <- ln w + ln p_{t+dt}(x + dt phi(x)) + ln |det(I + dt grad phi(x))| - ln p_t(x).

Both islands estimate the evidence, and if they do not agree, the run is in doubt.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from pgps import _checks
from pgps.adjustments.base import AbstractAdjustment, Adjustment
from pgps.adjustments.none import NoAdjustment
from pgps.density import Evaluations, Population, Problem
from pgps.edges import has_edge, start_inside
from pgps.fields.base import AbstractField
from pgps.methods.base import TRANSPORT, AbstractMethod, Row, State, Trace, estimation_key
from pgps.methods.doubts import path_doubts, training_doubts
from pgps.methods.leap import (
    ISLANDS,
    Flow,
    Leap,
    WeightedLeap,
    common_step,
    increments,
    is_torn,
    island_by_island,
    ladder_bias,
    leap_without_weights,
    on_islands,
    trusted_step,
)
from pgps.methods.smc import weight_doubts
from pgps.noise import split
from pgps.paths.base import AbstractPath, evaluate
from pgps.scouting.opinion import Scouting
from pgps.steppers.base import AbstractStepper, Clock
from pgps.trainers.base import AbstractTrainer, Training
from pgps.trainers.residual import residual
from pgps.weights import Weighing, Weights, pareto_k


class Memory(NamedTuple):
    """The field's parameters theta, and what the trainer and the adjustment carry from one t to the next."""

    params: PyTree
    trainer: PyTree
    adjustment: PyTree
    longest: Scalar
    """With weights: the time step that the last one makes us trust,"""
    reach: Scalar
    """and how much of it particles should move by the field."""
    path: PyTree
    """The settings that the path chose at t = 0; None if it is as it was."""
    has_edge: Bool[Array, ""]
    """With weights: whether the density jumps to 0 somewhere, where no field may carry particles (see `edges`),"""
    drawn_inside: Bool[Array, ""]
    """and whether the first particles were drawn until they were inside."""


class Transport(NamedTuple):
    """A step that can be repeated on other particles: its times, the field and how far it carries, and the moves."""

    before: Scalar
    after: Scalar
    length: Scalar
    path: PyTree
    params: PyTree
    moves: PyTree


class PGPS(AbstractMethod):
    """Algorithm 3, put together from parts. `pgps.exact`, `pgps.paper` and `pgps.training_free` are ready-made.

    Args:
        path: The path p_t.
        field: The vector field phi_t.
        trainer: How the field is fitted at each t.
        stepper: How far t moves.
        adjustment: How particles are adjusted after each move.
        weighing: How particles are weighed; None, as in the paper, has no weights.
        max_steps: Stop after this many time steps, wherever t is then.
        scouting: How a second opinion on the weighted particles is asked for; None asks for none.
    """

    path: AbstractPath
    field: AbstractField
    trainer: AbstractTrainer
    stepper: AbstractStepper
    adjustment: AbstractAdjustment
    weighing: Weighing | None = None
    max_steps: int = 10_000
    scouting: Scouting | None = None

    def __check_init__(self):
        _checks.instance("path", self.path, AbstractPath, "pgps.paths")
        _checks.instance("field", self.field, AbstractField, "pgps.fields")
        _checks.instance("trainer", self.trainer, AbstractTrainer, "pgps.trainers")
        self.trainer.check(self.field)
        _checks.instance("stepper", self.stepper, AbstractStepper, "pgps.steppers")
        _checks.instance("adjustment", self.adjustment, AbstractAdjustment, "pgps.adjustments")
        _checks.whole("max_steps", self.max_steps, at_least=1)
        if self.scouting is not None:
            _checks.instance("scouting", self.scouting, Scouting, "pgps.scouting.Scouting")
        if self.weighing is not None:
            _checks.instance("weighing", self.weighing, Weighing, "pgps.weights")
            if not (self.adjustment.leaves_invariant() or isinstance(self.adjustment, NoAdjustment)):
                raise TypeError(
                    f"adjustment must be MALA, HMC or NoAdjustment with weights, got {_checks.show(self.adjustment)}; "
                    "others do not leave p_t as it is, so the weights would be wrong"
                )

    @property
    def step_limit(self) -> int:
        """The largest number of time steps."""
        return self.max_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law, evaluated at t = 0, and a fresh field."""
        key_particles, key_field, key_inside = split(key, 3)
        dim, dtype = problem.structure.dim, problem.structure.dtype
        clock = Clock.start(dtype)
        params, weights = self.field.init(key_field, dim, dtype), None
        edge = drawn_inside = jnp.asarray(False)
        trainer = self.trainer.init(params)
        particles, evaluations, path = problem.draw(key_particles, num_particles), Evaluations(gradients=1), None
        if self.weighing is not None:
            _check_islands(num_particles)
            params, trainer = jax.tree.map(lambda leaf: jnp.stack([leaf] * ISLANDS), (params, trainer))
            edge, looked = has_edge(problem, particles)
            evaluations += looked
        if (choice := self.path.choose(particles, problem, edge)) is not None:
            path, evaluations = eqx.filter(choice[0], eqx.is_array), evaluations + choice[1]
        if self.weighing is not None:
            drawn_inside = edge & self._chosen(path).keeps_support()
            equal = Weights.equal(num_particles, dtype, ISLANDS)
            particles, weights, drawn = start_inside(key_inside, problem, particles, equal, drawn_inside)
            evaluations += drawn
        population = evaluate(self._chosen(path), clock.t, particles, problem, self._estimation_key(key))
        one = jnp.ones((), dtype)
        return State(
            population=population,
            clock=clock,
            num_steps=jnp.asarray(0),
            evaluations=evaluations,
            memory=Memory(params, trainer, self.adjustment.init(population, edge), one, one, path, edge, drawn_inside),
            weights=weights,
        )

    def _chosen(self, settings: PyTree) -> AbstractPath:
        """The path with the settings that it chose."""
        return self.path if settings is None else eqx.combine(settings, self.path)

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One pass through the loop of Algorithm 3."""
        key_train, key_adjust, key_flow = split(key, 3)
        path = self._chosen(state.memory.path)
        params, trainer, training = self._train(key_train, state)
        flow = self._flow(key_flow, state, params)
        leap, gap, edge = self._leap(key, state, path, params, flow, problem)
        population, weights = leap.population, None
        row: Row = {}

        if self.weighing is not None:
            assert state.weights is not None
            weights = state.weights.reweighted(leap.increments)
            row = _weighed_row(weights, gap, weights.log_evidences - state.weights.log_evidences)
            key_resample, key_adjust = split(key_adjust)
            weights, indices = weights.resampled(key_resample, self.weighing.resample_below, self.weighing.scheme)
            population = population.take(indices)
            row |= {
                "num_ancestors": weights.num_ancestors,
                "disagreement": weights.disagreement,
                "r2": training.r2,
                "reach": leap.length / leap.dt,
                "has_edge": edge,
                "finds_edge": edge & ~state.memory.has_edge,
                "keeps_support": path.keeps_support(),
            }

        population, memory, adjustment = self.adjustment.adjust(
            key_adjust,
            state.clock.t,
            leap.clock.t,
            population,
            state.memory.adjustment,
            lambda x, key=None: evaluate(path, leap.clock.t, x, problem, key),
        )

        row |= _row(leap, flow, training, adjustment) | path.told()
        if self.weighing is not None:
            first = jax.tree.map(lambda leaf: leaf[0], params)
            row[TRANSPORT] = Transport(
                state.clock.t, leap.clock.t, leap.length, state.memory.path, first, adjustment.kept
            )
        state = State(
            population=population,
            clock=leap.clock,
            num_steps=state.num_steps + 1,
            evaluations=state.evaluations + Evaluations(gradients=leap.num_tries) + adjustment.evaluations,
            memory=state.memory._replace(
                params=params,
                trainer=trainer,
                adjustment=memory,
                longest=trusted_step(leap),
                reach=leap.reach,
                has_edge=edge,
            ),
            weights=weights,
        )
        return state, jax.tree.map(jnp.asarray, row)

    def _train(self, key: Array, state: State) -> tuple[PyTree, PyTree, Training]:
        """Fit the field to the particles at t; with weights, an island's field to the particles of the other island."""
        t, population, memory = state.clock.t, state.population, state.memory
        if state.weights is None:
            return self.trainer.fit(key, t, population, self.field, memory.params, memory.trainer)

        def fit(island: tuple) -> tuple[PyTree, PyTree, Training]:
            key, population, params, trainer, log_weights = island
            return self.trainer.fit(key, t, population, self.field, params, trainer, log_weights)

        swapped = jax.tree.map(lambda leaf: leaf[::-1], (on_islands(population), state.weights.on_islands))
        islands = (split(key, ISLANDS), swapped[0], memory.params, memory.trainer, swapped[1])
        params, trainer, trainings = jax.lax.map(fit, islands)
        return params, trainer, trainings.joined()

    def _flow(self, key: Array, state: State, params: PyTree) -> Flow:
        """The field at the particles; with weights, that of their island."""
        t, particles = state.clock.t, state.population.particles
        if state.weights is None:
            return Flow(*self.field.flows(params, t, particles, key))
        flow = Flow(*island_by_island(lambda own, x: self.field.flows(own, t, x, key), params, particles))
        return jax.tree.map(lambda leaf: jnp.where(state.memory.has_edge, 0.0, leaf), flow)

    def _leap(
        self, key: Array, state: State, path: AbstractPath, params: PyTree, flow: Flow, problem: Problem
    ) -> tuple[Leap, Scalar, Bool[Array, ""]]:
        """Choose dt and move; with weights also weigh, and halve a step that proves too long.

        A step over an edge is made again without a field. Also returned: ln dt_1 - ln dt_2 of what the islands would
        choose, and whether the density is known to have an edge.
        """
        t, weights, memory = state.clock.t, state.weights, state.memory
        if weights is None:
            rates = residual(flow.velocity, flow.divergence, state.population)
            dt = self.stepper.time_step(t, flow.velocity, rates, jnp.zeros_like(rates))
            leap = leap_without_weights(state, flow, dt, path, problem, self._estimation_key(key))
            return leap, jnp.zeros_like(dt), memory.has_edge

        def time_step(flow: Flow) -> tuple[Float[Array, " n"], Scalar, Scalar]:
            rates = residual(flow.velocity, flow.divergence, state.population)
            islands = (*on_islands((flow.velocity, rates)), weights.on_islands)
            dts = jax.vmap(lambda *island: self.stepper.time_step(t, *island))(*islands)
            return rates, *common_step(dts, weights.log_evidences)

        ways = WeightedLeap(path, self.field, params, problem)
        rates, dt, gap = time_step(flow)
        leap = ways.move(state, flow, rates, dt, memory.longest, memory.reach)
        torn = is_torn(state.population, leap)

        def without_field() -> tuple[Leap, Scalar]:
            _, dt, gap = time_step(jax.tree.map(jnp.zeros_like, flow))
            still = ways.stand_still(state, dt, memory.reach)
            return still._replace(num_tries=leap.num_tries + still.num_tries), gap

        leap, gap = jax.lax.cond(torn | (leap.num_tries == 0), without_field, lambda: (leap, gap))
        return leap, gap, memory.has_edge | torn

    def _estimation_key(self, key: Array) -> Array | None:
        """The key that estimates a stochastic target; weights and Metropolis's rule need the target itself."""
        exact = self.weighing is not None or self.adjustment.leaves_invariant()
        return None if exact else estimation_key(key)

    def repeat(
        self, key: Array, population: Population, weights: Weights, transport: Transport, problem: Problem
    ) -> tuple[Population, Weights, Evaluations]:
        """Take a step again on other particles, as it was: their weights are exact, and the evidence unbiased."""
        assert self.weighing is not None
        key_resample, key_moves, key_flow = split(key, 3)
        t, length, params, path = transport.before, transport.length, transport.params, self._chosen(transport.path)

        def evaluate_after(x: Float[Array, "n dim"], key: Array | None = None) -> Population:
            return evaluate(path, transport.after, x, problem, key)

        velocity, _ = self.field.flows(params, t, population.particles, key_flow)
        log_det = self.field.log_dets(params, t, population.particles, length)
        # A field that was not used may be anything.
        shift, log_det = (jnp.where(length > 0, change, 0.0) for change in (length * velocity, log_det))
        after = evaluate_after(population.particles + shift)
        weights = weights.reweighted(increments(population, after, log_det))
        weights, indices = weights.resampled(key_resample, self.weighing.resample_below, self.weighing.scheme)
        population, evaluations = self.adjustment.replay(
            key_moves, transport.moves, after.take(indices), evaluate_after
        )
        return population, weights, Evaluations(gradients=1) + evaluations

    def doubts(self, trace: Trace) -> list[str]:
        """Training that ended above its threshold or, with weights, what these and the moves leave open."""
        if self.weighing is None:
            return training_doubts(trace)
        return weight_doubts(trace) + path_doubts(trace, self.adjustment)


def _row(leap: Leap, flow: Flow, training: Training, adjustment: Adjustment) -> Row:
    """What every step tells."""
    return {
        "t": leap.clock.t,
        "dt": leap.dt,
        "loss": training.loss,
        "training_steps": training.num_steps,
        "converged": training.converged,
        "field_norm": jnp.mean(jnp.linalg.norm(flow.velocity, axis=-1)),
        "adjustment_steps": adjustment.num_steps,
        "acceptance": adjustment.acceptance,
        "covered": adjustment.covered,
        "width_spread": adjustment.width_spread,
        "width_ratio": adjustment.width_ratio,
        "faults": adjustment.faults,
        "inside": adjustment.inside,
    }


def _weighed_row(weights: Weights, gap: Scalar, gains: Float[Array, " islands"]) -> Row:
    """What the weights tell before resampling."""
    return {
        "ess": weights.ess,
        "pareto_k": pareto_k(weights.log_weights),
        "log_evidence": weights.log_evidence,
        "ladder_bias": ladder_bias(gap, gains),
    }


def _check_islands(num_particles: int) -> None:
    if num_particles % ISLANDS or num_particles < 6:
        raise ValueError(
            f"num_particles must be even and 6 or more for weights, got {num_particles}; they live on two islands, "
            "of which one trains the other's field"
        )
