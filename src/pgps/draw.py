"""Fresh particles through the fields of a run that is done: as many as wanted, with exact weights.

Each chunk of particles repeats the run's steps as they were: the same times, fields, step sizes and numbers of moves,
none of which depends on the new particles. So the chunks are independent, and the mean of their evidences is unbiased.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from pgps.density import Evaluations, Problem
from pgps.edges import start_inside
from pgps.methods.pgps import PGPS
from pgps.noise import split
from pgps.paths.base import evaluate
from pgps.weights import Weights

_CHUNK = 2000
# Folded into the key: with that of the run itself, the first chunk would be the run's own first particles.
_DRAWS = 2**30 + 2


class Fitted(eqx.Module):
    """All that drawing needs of a run."""

    method: PGPS
    problem: Problem
    steps: PyTree
    """The run's `Transport`s, with a leading axis over the steps."""
    drawn_inside: Bool[Array, ""]
    """Whether its first particles were drawn until they were inside the support."""
    rounding: Scalar
    """What rounding adds to the error of the log evidence."""


class Drawn(NamedTuple):
    """Particles, their log-weights, and what they cost, per particle."""

    particles: Float[Array, "n dim"]
    weights: Weights
    evaluations: Evaluations


def draw(fitted: Fitted, key: Array, num: int) -> Drawn:
    """Draw at least `num` particles, chunk by chunk; chunks are islands of the weights."""
    num_chunks = math.ceil(num / _CHUNK)
    size = math.ceil(num / num_chunks)
    keys = jax.random.split(jax.random.fold_in(key, _DRAWS), num_chunks)
    chunks = [_draw_chunk(fitted, key, size) for key in keys]
    particles, weights, evaluations = zip(*chunks, strict=True)
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *weights)
    return Drawn(jnp.concatenate(particles), joined, evaluations[0])


@eqx.filter_jit
def _draw_chunk(fitted: Fitted, key: Array, num: int) -> Drawn:
    method, problem = fitted.method, fitted.problem
    dtype = problem.structure.dtype
    key_particles, key_steps, key_inside = split(key, 3)
    particles, weights, drawn = start_inside(
        key_inside, problem, problem.draw(key_particles, num), Weights.equal(num, dtype), fitted.drawn_inside
    )
    population = evaluate(method.path, jnp.zeros((), dtype), particles, problem)
    start = (population, weights, Evaluations(gradients=jnp.asarray(1), values=jnp.asarray(0)) + drawn)

    def repeat(carry: tuple, step: tuple) -> tuple[tuple, None]:
        population, weights, evaluations = carry
        key, transport = step
        population, weights, cost = method.repeat(key, population, weights, transport, problem)
        return (population, weights, evaluations + cost), None

    num_steps = len(jax.tree.leaves(fitted.steps)[0])
    (population, weights, evaluations), _ = jax.lax.scan(
        repeat, start, (jax.random.split(key_steps, num_steps), fitted.steps)
    )
    return Drawn(population.particles, weights, evaluations)
