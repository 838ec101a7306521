"""Moves through a funnel, from its mouth to its neck and back.

Where the density's width in some directions varies with a coordinate, as that of a group's effects with the logarithm
of their scale, steps that suit one place are too long or too short for the next. But a move that shifts that coordinate
by delta and stretches, with it, how far the others are from where they belong,

    z' = z + delta,      r'_j = exp(s_j delta) r_j,      r = B (x - m(z)),

stays inside the funnel however narrow that gets. Here z is a linear function of the coordinates that decide about the
widths (widths.py), and m(z) is linear, too, and fitted to the other coordinates, to those of particles in narrow places
most of all. B are the directions in which wide and narrow places differ: a group's effects become narrow around their
mean, not around a point. They are the generalised eigenvectors of the covariances in wide and in narrow places, and s_j
is the slope of ln |r_j| over z.

The same move by -delta leads back, volumes grow by exp(delta sum_j s_j), and delta has a symmetric law, so by
Metropolis's rule p stays as it is. In coordinates that are not centred (Papaspiliopoulos et al., 2007) such moves are
shifts of z alone.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pgps.adjustments.base import Evaluate
from pgps.adjustments.crossed import Crossed
from pgps.adjustments.metropolis import Move, metropolis
from pgps.adjustments.widths import Funnels, Widths
from pgps.density import Population
from pgps.noise import draw_noise, draw_uniform, split
from pgps.quantiles import quantiles

# Places are narrow or wide if they are among this share; there should be so many particles for each dimension.
_SHARE = 0.25
_LEAST_PARTICLES = 4
# A coordinate with a part of this size in z decides about the widths.
_LEAST_PART = 1e-3
# How far a shift goes, at the most, in standard deviations of the particles: as is best for a random walk.
_LONGEST = 2.4
# Weights of particles in a fit differ by exp(+- this) at the most.
_LARGEST_LOG_WEIGHT = 4.0
# Covariances get this share of their mean variance on top; a slope counts if it is so many times its error by chance.
_RIDGE = 1e-5
_CLEARLY = 3.0


def fit_funnels(population: Population, widths: Widths) -> Funnels | None:
    """The ways through the funnels that the widths tell of; None in dimensions that are too many for the particles."""
    if (nothing := no_funnels(population, widths)) is None:
        return None
    return jax.lax.cond(jnp.any(widths.slopes != 0), lambda: _ways(population.particles, widths), lambda: nothing)


def no_funnels(population: Population, widths: Widths) -> Funnels | None:
    """The same with no way to go."""
    num, dim = population.particles.shape
    if dim < 2 or dim * _LEAST_PARTICLES > _SHARE * num:
        return None
    shapes = jax.eval_shape(_ways, population.particles, widths)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _ways(x: Float[Array, "n dim"], widths: Widths) -> Funnels:
    return jax.lax.map(lambda direction: _way(x, widths, direction), widths.directions.T)


def _way(x: Float[Array, "n dim"], widths: Widths, direction: Float[Array, " dim"]) -> Funnels:
    """The way along one of the functions z; of length 0 where there is none."""
    standard = (x - widths.center) / widths.scale
    decides = jnp.abs(direction) > _LEAST_PART * jnp.max(jnp.abs(direction))
    # What does not decide has no part in z at all: else the stretch would shift z, too.
    direction = jnp.where(decides, direction, 0.0)
    z = standard @ direction
    rest = jnp.where(decides, 0.0, standard)

    log_weights = jnp.clip(-2 * (z - jnp.mean(z)), -_LARGEST_LOG_WEIGHT, _LARGEST_LOG_WEIGHT)
    weights = jax.nn.softmax(log_weights)
    middle, place = weights @ rest, weights @ z
    trend = (weights * (z - place)) @ rest / jnp.maximum(weights @ (z - place) ** 2, jnp.finfo(z.dtype).tiny)
    deviations = rest - middle - jnp.outer(z - place, trend)

    low, high = quantiles(z, np.array([_SHARE, 1 - _SHARE]))
    narrow, wide = _covariance(deviations, z <= low), _covariance(deviations, z >= high)
    # Coordinates that decide have no deviations: a variance of 1 in both keeps them apart from the others.
    alone = jnp.diag(jnp.where(decides, 1.0, 0.0))
    size = jnp.trace(narrow) / len(narrow)
    unit = jnp.eye(len(narrow), dtype=z.dtype)
    root = jnp.linalg.cholesky(narrow + alone + (_RIDGE * size + jnp.finfo(z.dtype).tiny) * unit)
    inverse = jax.scipy.linalg.solve_triangular(root, unit, lower=True)
    _, vectors = jnp.linalg.eigh(inverse @ (wide + alone) @ inverse.T)
    directions, back = vectors.T @ inverse, root @ vectors
    slopes = jnp.where(decides @ jnp.abs(back) > 0.5, 0.0, _slopes(deviations @ directions.T, z))

    usable = jnp.any(slopes != 0) & jnp.all(jnp.isfinite(directions)) & jnp.all(jnp.isfinite(back))
    shift = jnp.where(decides, direction / jnp.maximum(jnp.sum(direction**2), jnp.finfo(z.dtype).tiny), trend)
    way = Funnels(
        direction=direction / widths.scale,
        origin=widths.center @ (direction / widths.scale) + place,
        shift=shift * widths.scale,
        middle=widths.center + widths.scale * middle,
        trend=trend * widths.scale,
        directions=directions / widths.scale,
        back=back * widths.scale[:, None],
        slopes=slopes,
        length=_LONGEST * jnp.std(z),
    )
    return jax.tree.map(lambda leaf: jnp.where(usable, leaf, 0.0), way)


def _covariance(deviations: Float[Array, "n dim"], chosen: Bool[Array, " n"]) -> Float[Array, "dim dim"]:
    weights = chosen.astype(deviations.dtype) / jnp.sum(chosen)
    return (weights[:, None] * deviations).T @ deviations


def _slopes(values: Float[Array, "n dim"], z: Float[Array, " n"]) -> Float[Array, " dim"]:
    """The slopes of ln |r_j| over z, where they are clearly none of chance."""
    sizes = 0.5 * jnp.log(jnp.maximum(values**2, jnp.finfo(values.dtype).tiny))
    centred = z - jnp.mean(z)
    slopes = centred @ sizes / jnp.sum(centred**2)
    # ln |r| of a Gaussian has a standard deviation of pi / sqrt(8).
    chance = math.pi / math.sqrt(8) / jnp.sqrt(jnp.sum(centred**2))
    return jnp.where(jnp.abs(slopes) > _CLEARLY * chance, slopes, 0.0)


def funnel_step(key: Array, population: Population, widths: Crossed, evaluate: Evaluate) -> Move:
    """One move of every particle, along one of the ways each; it costs one gradient call."""
    key_way, key_length, key_noise, key_accept = split(key, 4)
    x = population.particles
    sizes = draw_uniform(key_length, len(x), x.dtype) * draw_noise(key_noise, x[:, :1])[:, 0]
    ends, growths = widths.each(_through, x, draw_uniform(key_way, len(x), x.dtype), sizes)
    proposal = evaluate(ends)
    return metropolis(key_accept, population, proposal, proposal.logdensity - population.logdensity + growths)


def _through(
    widths: Widths, x: Float[Array, "n dim"], choice: Float[Array, " n"], sizes: Float[Array, " n"]
) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
    """Where shifts of these sizes lead, along ways that numbers in [0, 1) choose, and how much volumes grow."""
    assert widths.funnels is not None

    def along(way: Funnels) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
        delta = way.length * sizes
        z = x @ way.direction - way.origin
        deviations = x - way.middle - jnp.outer(z, way.trend)
        stretched = deviations @ way.directions.T * jnp.expm1(jnp.outer(delta, way.slopes))
        return x + jnp.outer(delta, way.shift) + stretched @ way.back.T, delta * jnp.sum(way.slopes)

    open_so_far = jnp.cumsum(widths.funnels.length > 0)
    # Where no way is open, the last one leads nowhere.
    which = jnp.sum(choice[:, None] * open_so_far[-1] >= open_so_far[:-1], axis=1)
    ends, growths = jax.vmap(along)(widths.funnels)
    rows = jnp.arange(len(x))
    return ends[which, rows], growths[which, rows]
