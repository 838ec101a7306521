"""Edges of a density: places where it falls to 0 at once, as at the walls of a box.

Weights are exact for a map x -> x + s phi(x) if it takes the support of p_t to all of the support of the next density.
Where there are edges a field knows nothing of them, and a map that contracts leaves out what is next to them: step by
step the evidence falls, and nothing shows it. Nor may a path widen the support on its way.

So particles are also looked at where they are when spread about the law's mean. If the density is 0 at any of these
places, a bisection tells on the way there whether it jumps to 0, or has become so small that it cannot be told from 0.

Where the initial law has much of its mass outside the support, the first step would leave few particles. So each has
K tries: it is the first draw inside, and its weight is the share of the K that are. That is exact, for any function f:

    E[(1/K) sum_k 1(x_k inside) f(first inside)]  =  E[(1/K) sum_k 1(x_k inside) f(x_k)]  =  E[1(x inside) f(x)].
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from pgps.density import NOTHING, Evaluations, Problem
from pgps.noise import fold_in, split
from pgps.weights import Weights

# How far particles are spread, how many ways to a place without density are bisected, and how often: up to rounding.
_SPREAD = 2.0
_NUM_WAYS = 16
_NUM_BISECTIONS = 24
# How often a particle is drawn, K.
_NUM_TRIES = 32


def has_edge(
    problem: Problem, particles: Float[Array, "n dim"], center: Float[Array, " dim"] | None = None
) -> tuple[Bool[Array, ""], Evaluations]:
    """Whether the initial law or the target has an edge near particles, and what it cost to look.

    Args:
        problem: The initial law and the target.
        particles: Where to look.
        center: What they are spread about; the initial law's mean if it is not given.
    """

    def log_both(x: Float[Array, " dim"]) -> Scalar:
        return problem.log_initial(x) + problem.log_target(x)

    center = problem.center if center is None else center
    places = jnp.stack([particles, center + _SPREAD * (particles - center)])
    # A loop, since the density is compiled once then: its compilation may take longer than all of its calls.
    values = jax.lax.map(lambda x: problem.spread.map(log_both, x), places).ravel()
    is_outside = values == -jnp.inf

    def jumps() -> Bool[Array, ""]:
        x = places.reshape(-1, particles.shape[1])
        highest = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values))
        start = x[highest], values[highest]
        (which,) = jnp.nonzero(is_outside, size=_NUM_WAYS, fill_value=0)
        last = jax.vmap(lambda outside: _last_value(log_both, *start, outside))(x[which])
        return jnp.any(is_outside[which] & (last > NOTHING))

    found = jax.lax.cond(jnp.any(is_outside), jumps, lambda: jnp.asarray(False))
    return found, Evaluations(values=jnp.where(jnp.any(is_outside), most_values(len(particles)), 2))


def most_values(num_particles: int) -> int:
    """What it costs to look at most, per particle: the ways add less than a call, unless particles are few."""
    return 2 + -(-_NUM_WAYS * _NUM_BISECTIONS // num_particles)


def start_inside(
    key: Array, problem: Problem, particles: Float[Array, "n dim"], weights: Weights, needed: Bool[Array, ""]
) -> tuple[Float[Array, "n dim"], Weights, Evaluations]:
    """If needed, draw particles of equal weights again until they are inside; their weights then, and what it cost."""
    key_tries, key_resample = split(key)
    chosen, num_inside = jax.lax.cond(
        needed,
        lambda: _first_inside(key_tries, problem, particles),
        lambda: (particles, jnp.full(len(particles), _NUM_TRIES)),
    )
    reweighted = weights.reweighted(jnp.log(num_inside / _NUM_TRIES).astype(particles.dtype))
    weights = jax.tree.map(lambda new, old: jnp.where(needed, new, old), reweighted, weights)
    # Particles that are outside still would count in scales and distances.
    weights, indices = weights.resampled(key_resample, jnp.where(needed, 1.0, 0.0))
    return chosen[indices], weights, Evaluations(values=jnp.where(needed, _NUM_TRIES, 0))


def _first_inside(
    key: Array, problem: Problem, particles: Float[Array, "n dim"]
) -> tuple[Float[Array, "n dim"], Int[Array, " n"]]:
    """The first of all tries that is inside, and how many are; the particles are the first try."""

    def draw(k: Int[Array, ""], drawn: tuple[Array, Array]) -> tuple[Array, Array]:
        chosen, num_inside = drawn
        candidates = jnp.where(k == 0, particles, problem.draw(fold_in(key, k), len(particles)))
        inside = problem.spread.map(problem.log_target, candidates) != -jnp.inf
        taken = inside & (num_inside == 0)
        return jnp.where(taken[:, None], candidates, chosen), num_inside + inside

    return jax.lax.fori_loop(0, _NUM_TRIES, draw, (particles, jnp.zeros(len(particles), int)))


def _last_value(
    function: Callable[[Float[Array, " dim"]], Scalar],
    inside: Float[Array, " dim"],
    value: Scalar,
    outside: Float[Array, " dim"],
) -> Scalar:
    """The value just before the function becomes -inf, on the way from a place where it has a value to another one."""

    def halve(_: Array, bracket: tuple[Scalar, Scalar, Scalar]) -> tuple[Scalar, Scalar, Scalar]:
        near, far, last = bracket
        middle = (near + far) / 2
        value = function(inside + middle * (outside - inside))
        is_inside = value > -jnp.inf
        return jnp.where(is_inside, middle, near), jnp.where(is_inside, far, middle), jnp.where(is_inside, value, last)

    zero = jnp.zeros((), inside.dtype)
    return jax.lax.fori_loop(0, _NUM_BISECTIONS, halve, (zero, zero + 1, value))[2]
