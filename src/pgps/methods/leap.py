"""One time step of PGPS: x <- x + dt phi(x), t <- t + dt.

With weights, each island has a field of its own. The increment of a log-weight is exact for any map, so particles may
move by s phi(x) with a length s other than dt:

    ln w <- ln w + ln p_{t+dt}(x') + ln |det(I + s grad phi(x))| - ln p_t(x),      x' = x + s phi(x).

The field belongs to the start of the step, and where p_t contracts, say, dt phi(x) goes too far. The length that would
have made the last weights most even is known by regression of ln w on

    d/ds ln w = score_{t+dt}(x') . phi(x) + d/ds ln |det(I + s grad phi(x))|,

and its share of dt, the reach, serves the next step.

Both islands take one dt, between those that each would choose, and dt follows chance: an island that by chance has few
particles with large rates chooses a longer one, and has too low a rate meanwhile. In heavy tails that adds up to a bias
of the log evidence. Islands show it, since what they have by chance is independent: with c = cov(ln dt, ln Z's gain),

    E[(ln dt_1 - ln dt_2) (gain_1 - gain_2)]  =  2 c,      and the mean of both is off by c / 2 at each step.

The chosen dt is a prediction from the residual, which only tells about the start of the step, too. So the step is
taken, its conditional ESS is compared with the predicted one, and it is halved if it wastes many more particles.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps.density import Population, Problem
from pgps.fields.base import AbstractField
from pgps.methods.base import State
from pgps.paths.base import AbstractPath, evaluate
from pgps.steppers.base import Clock
from pgps.steppers.conditional_ess import conditional_ess

ISLANDS = 2
"""Where particles with weights live."""

# A map is taken for one-to-one if dt times the largest stretch is below this, at the particles and, since fresh ones
# come from farther out, where these are when spread about their mean.
_LARGEST_STRETCH = 0.5
_SPREAD = 1.5
# A step is halved, this often at most, if it wastes so many times the particles that were reckoned with.
_MOST_HALVINGS = 2
_MOST_WASTE = 2.0
# After a step that was right at the first try, one this many times as long is tried.
_GROWTH = 2.0
# The common step is at most so many times that of the island which would choose the shorter one.
_MOST_HASTE = 2.0
# Bounds of the reach: beyond them the field is no guide.
_SHORTEST_REACH, _LONGEST_REACH = 0.3, 1.2


class Flow(NamedTuple):
    """The trained field at the particles."""

    velocity: Float[Array, "n dim"]
    divergence: Float[Array, " n"]


class Leap(NamedTuple):
    """A time step that was tried: where it ends, the particles there, and their log-weight increments."""

    clock: Clock
    dt: Scalar
    length: Scalar
    """By how many velocities particles moved."""
    population: Population
    increments: Float[Array, " n"]
    num_tries: Int[Array, ""]
    wasteful: Bool[Array, ""]
    reach: Scalar
    """The length that would have made the weights most even, as a share of dt."""


def on_islands(tree: PyTree) -> PyTree:
    """Arrays over the particles, with a leading axis over the islands."""
    return jax.tree.map(lambda leaf: leaf.reshape(ISLANDS, -1, *leaf.shape[1:]), tree)


def island_by_island(function: Callable[..., PyTree], params: PyTree, *over_particles: PyTree) -> PyTree:
    """Apply `function(params, ...)` to each island with its own parameters; gives arrays over all particles."""
    parts = jax.lax.map(lambda island: function(*island), (params, *on_islands(over_particles)))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), parts)


def increments(before: Population, after: Population, log_det: Float[Array, " n"]) -> Float[Array, " n"]:
    """The exact increments of the log-weights, for a map with this log-determinant."""
    change = after.logdensity + log_det - before.logdensity
    # Where the density fails a particle has no weight; the run is told by its population.
    return jnp.where(before.alive & ~jnp.isnan(change), change, -jnp.inf)


def _slope(log_weights: Float[Array, " n"], y: Float[Array, " n"], x: Float[Array, " n"]) -> Scalar:
    """The slope of y over x by weighted least squares; particles where either is infinite are left out."""
    usable = jnp.isfinite(x) & jnp.isfinite(y)
    weights = jnp.where(usable, jax.nn.softmax(log_weights), 0.0)
    x, y = jnp.where(usable, x, 0.0), jnp.where(usable, y, 0.0)
    deviations = x - weights @ x / jnp.sum(weights)
    return weights @ (deviations * y) / (weights @ deviations**2)


def common_step(dts: Float[Array, " islands"], log_evidences: Float[Array, " islands"]) -> tuple[Scalar, Scalar]:
    """The geometric mean of what two islands choose, and ln dt_1 - ln dt_2; one without weight has no say."""
    has_weight = log_evidences > -jnp.inf
    shortest = jnp.min(jnp.where(has_weight, dts, 1.0))
    longest = jnp.maximum(jnp.max(jnp.where(has_weight, dts, 0.0)), shortest)
    dt = shortest * jnp.minimum(jnp.sqrt(longest / shortest), _MOST_HASTE)
    return dt, jnp.where(jnp.all(has_weight), jnp.log(dts[0] / dts[1]), 0.0)


def ladder_bias(gap: Scalar, gains: Float[Array, " islands"]) -> Scalar:
    """What the mean of both islands' log evidences is off by in one step, since dt follows chance.

    Args:
        gap: ln dt_1 - ln dt_2.
        gains: The increase of the log evidence on each island.
    """
    bias = gap * (gains[0] - gains[1]) / 4
    return jnp.where(jnp.isfinite(bias), bias, 0.0)


def is_torn(before: Population, leap: Leap) -> Bool[Array, ""]:
    """Whether a field has carried particles out of the support."""
    return (leap.length > 0) & jnp.any(before.alive & ~leap.population.alive)


def trusted_step(leap: Leap) -> Scalar:
    """The longest step to try next: longer than the last one, if that was right at the first try."""
    return jnp.where(leap.num_tries == 0, 1.0, jnp.where(leap.num_tries == 1, _GROWTH, 1.0) * leap.dt)


def leap_without_weights(
    state: State, flow: Flow, dt: Scalar, path: AbstractPath, problem: Problem, key: Array | None
) -> Leap:
    """Move every particle; a stochastic target is estimated by the key, if there is one."""
    clock, dt = state.clock.advance(dt)
    after = evaluate(path, clock.t, state.population.particles + dt * flow.velocity, problem, key)
    nothing = jnp.zeros_like(flow.divergence)
    return Leap(clock, dt, dt, after, nothing, jnp.asarray(1), jnp.asarray(False), jnp.ones_like(dt))


class WeightedLeap(eqx.Module):
    """A step with weights along a path, by a field with parameters for each island."""

    path: AbstractPath
    field: AbstractField
    params: PyTree
    problem: Problem

    def move(
        self, state: State, flow: Flow, rates: Float[Array, " n"], dt: Scalar, longest: Scalar, reach: Scalar
    ) -> Leap:
        """Move by dt, or by the `longest` that is trusted, or less if it proves too long; a field of 0 is not tried."""
        t, before = state.clock.t, state.population
        dt = jnp.minimum(jnp.minimum(dt, _LARGEST_STRETCH / self._largest_stretch(t, before.particles)), longest)
        # As if a step of twice the length had been tried: over half of it the field changes half as much.
        nothing, begun = jnp.zeros_like(rates), (jnp.asarray(0), jnp.any(flow.velocity != 0))
        untried = Leap(state.clock, 2 * dt, 2 * dt, before, nothing, *begun, 2 * reach - 1)
        return jax.lax.while_loop(
            lambda tried: tried.wasteful & (tried.num_tries <= _MOST_HALVINGS),
            lambda tried: self._try(state, flow, rates, tried),
            untried,
        )

    def _try(self, state: State, flow: Flow, rates: Float[Array, " n"], last: Leap) -> Leap:
        """Half of the last step; it is wasteful if far fewer particles stay effective than the residual promised."""
        assert state.weights is not None
        t, before, log_weights = state.clock.t, state.population, state.weights.on_islands
        clock, dt = state.clock.advance(last.dt / 2)
        reach = jnp.clip((1 + last.reach) / 2, _SHORTEST_REACH, _LONGEST_REACH)
        length = reach * dt
        after = evaluate(self.path, clock.t, before.particles + length * flow.velocity, self.problem)
        log_det = island_by_island(
            lambda params, x: self.field.log_dets(params, t, x, length), self.params, before.particles
        )
        change = increments(before, after, log_det)

        kept = jax.vmap(conditional_ess)(log_weights, on_islands(change))
        reckoned = jax.vmap(conditional_ess)(log_weights, on_islands(dt * rates))
        wasteful = jnp.any(1 - kept > _MOST_WASTE * jnp.maximum(1 - reckoned, 1e-2))

        # The log-determinant grows at the rate div phi at first; at the end, by its mean over the step, at this one.
        growth = 2 * log_det / length - flow.divergence
        slopes = jax.vmap(_slope)(
            log_weights, *on_islands((change, jnp.sum(after.score * flow.velocity, axis=-1) + growth))
        )
        # An island without a field has no slope.
        better = reach - jnp.nanmean(slopes) / dt
        better = jnp.where(jnp.isfinite(better), better, reach)
        return Leap(clock, dt, length, after, change, last.num_tries + 1, wasteful, better)

    def _largest_stretch(self, t: Scalar, particles: Float[Array, "n dim"]) -> Scalar:
        middle = jnp.mean(particles, axis=0)
        places = on_islands((particles, middle + _SPREAD * (particles - middle)))
        places = jnp.concatenate(places, axis=1).reshape(-1, particles.shape[1])
        return jnp.max(island_by_island(lambda params, x: self.field.stretches(params, t, x), self.params, places))

    def stand_still(self, state: State, dt: Scalar, reach: Scalar) -> Leap:
        """No field: only the weights change, and nothing is evaluated if the path can tell."""
        before = state.population
        clock, dt = state.clock.advance(dt)
        after, num_tries = self.path.retime(clock.t, before), 0
        if after is None:
            after, num_tries = evaluate(self.path, clock.t, before.particles, self.problem), 1
        change = increments(before, after, jnp.zeros_like(before.logdensity))
        none = jnp.zeros_like(dt)
        return Leap(clock, dt, none, after, change, jnp.asarray(num_tries), jnp.asarray(False), reach)
