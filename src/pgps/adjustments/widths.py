"""How wide the density is around a particle, and how that varies from place to place.

In coordinate i the density reaches about w_i exp(s_i . z(x)) around x, where z holds one or two linear functions of x.
In a funnel, as hierarchical models have it, the logarithm of the width is linear. Both are fitted to the scores: around
a particle the expected ln score_i^2 falls by twice the logarithm of the width, so z is the linear function of x that
goes together with these best (by partial least squares), and s_i its slope.

A step size that is a function of x would not be reversible. So a move draws zeta ~ N(z(x), tau^2), has steps of the
widths at zeta from its beginning to its end, and Metropolis's rule counts the density of zeta at both of them:

    ln q(zeta | x') - ln q(zeta | x),        q(zeta | x) = N(zeta; z(x), tau^2).

Where coordinates hang together, the density is narrow across and wide along directions that are not theirs. The scores
tell that, too: in units of the widths their covariance is about the inverse of the density's around a particle, however
far apart modes are. With its eigenvectors v_k and eigenvalues lambda_k, steps are longer by lambda_k^(-1/2) along v_k.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar
from scipy import special

from pgps.density import Population
from pgps.quantiles import quantiles

# The noise tau of zeta, in units of the logarithm of the width.
_NOISE = 0.5
RANK = 2
"""Functions z, at the most."""
# Rounds of partial least squares that find one, an even number; in up to so many dimensions by products of matrices.
_ROUNDS = 6
_FEW_DIMENSIONS = 32
# A function is used if it explains this share of the variance of ln score^2, and twice what it would by chance, 4 / N.
# A higher bar is passed too late: where a neck begins to form while moves know nothing of it, no particle goes there.
_LEAST_SHARE = 0.015
_CHANCE = 8.0
# A coordinate's width varies if its slope is this share of the steepest, and the others decide about it alone if they
# have this share of the function's squared parts, each at least this share of the largest part.
_LEAST_SLOPE = 0.4
_LEAST_PART = 0.4
# Coordinates count up to so many standard deviations from the middle, and distances up to so many widths: a few
# particles far out should not decide.
_FARTHEST = 4.0
# Middle and spread of a coordinate are those of so many particles at least: what is compared with them needs more than
# what is only brought to their scale.
_SORTED = 256
_SORTED_FOR_SCALE = 128
# Directions other than the coordinates' are sought in so many dimensions at most, with so many particles for each, and
# taken if along one of them the density is narrower or wider, squared, by this many times what chance could do.
_MOST_DIMENSIONS = 128
_LEAST_PARTICLES = 4
_CLEARLY = 2.0
# The upper quartile of the standard normal law.
_QUARTILE = float(special.ndtri(0.75))


class Funnels(NamedTuple):
    """Ways through funnels, one for each function z of the widths along a leading axis; see funnels.py."""

    direction: Float[Array, "rank dim"]
    origin: Float[Array, " rank"]
    shift: Float[Array, "rank dim"]
    middle: Float[Array, "rank dim"]
    trend: Float[Array, "rank dim"]
    directions: Float[Array, "rank dim dim"]
    back: Float[Array, "rank dim dim"]
    slopes: Float[Array, "rank dim"]
    length: Float[Array, " rank"]

    @property
    def active(self) -> Bool[Array, "..."]:
        """Whether there is any way to go."""
        return jnp.any(self.length > 0, axis=-1)


class Widths(NamedTuple):
    """The density's width in each coordinate, as a function of the place; `uniform` ones are the same everywhere."""

    base: Float[Array, " dim"]
    center: Float[Array, " dim"]
    scale: Float[Array, " dim"]
    directions: Float[Array, "dim rank"]
    slopes: Float[Array, "rank dim"]
    axes: Float[Array, "dim dim"] | None = None
    """In units of the widths: orthogonal directions as columns, each as long as the density is wide; None is none."""
    funnels: Funnels | None = None
    """Ways from wide places to narrow ones; None where moves do without."""

    def along(self, scaled: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """Products of vectors in units of the widths with each of the axes."""
        return scaled if self.axes is None else scaled @ self.axes

    def combine(self, lengths: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """Vectors in units of the widths that go so far along each of the axes."""
        return lengths if self.axes is None else lengths @ self.axes.T

    def lengths(self, scaled: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """How far vectors in units of the widths go along each of the axes: undoes `combine`."""
        return scaled if self.axes is None else self.along(scaled) / jnp.sum(self.axes**2, axis=0)

    def places(self, particles: Float[Array, "n dim"]) -> Float[Array, "n rank"]:
        """z(x)."""
        return self.standardise(particles) @ self.directions

    def standardise(self, particles: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """Coordinates in standard deviations from the middle."""
        return jnp.clip((particles - self.center) / self.scale, -_FARTHEST, _FARTHEST)

    def at(self, places: Float[Array, "n rank"]) -> Float[Array, "n dim"]:
        """The widths at a place z."""
        return self.base * jnp.exp(places @ self.slopes)

    def drawn(self, noise: Float[Array, "n rank"], particles: Float[Array, "n dim"]) -> Float[Array, "n rank"]:
        """zeta, for a move from each particle, by standard normal noise."""
        return self.places(particles) + _NOISE * noise

    def log_ratio(
        self, drawn: Float[Array, "n rank"], start: Float[Array, "n dim"], end: Float[Array, "n dim"]
    ) -> Float[Array, " n"]:
        """ln q(zeta | end) - ln q(zeta | start)."""
        from_start, from_end = (jnp.sum((drawn - self.places(x)) ** 2, axis=-1) for x in (start, end))
        return (from_start - from_end) / (2 * _NOISE**2)


def unit_widths(population: Population) -> Widths:
    """Widths of 1, everywhere and in each coordinate."""
    dim, dtype = population.particles.shape[1], population.particles.dtype
    ones, zeros = jnp.ones(dim, dtype), jnp.zeros((RANK, dim), dtype)
    return Widths(ones, zeros[0], ones, zeros.T, zeros)


def uniform_widths(population: Population) -> Widths:
    """Widths that are the same everywhere: those around an average particle."""
    unit = unit_widths(population)
    return unit._replace(base=_base(population, unit))


def width_functions(population: Population) -> Widths:
    """How widths vary from place to place, but not how large they are: `refreshed` tells that."""
    center, scale = _middle_and_spread(population.particles, _SORTED_FOR_SCALE)
    unit = unit_widths(population)._replace(center=center, scale=scale)
    standard = unit.standardise(population.particles)
    standard = standard - jnp.mean(standard, axis=0)
    # The floor keeps a score of 0 from counting for everything.
    sizes = (scale * population.score) ** 2
    left = jnp.log(jnp.maximum(sizes, 1e-12 * jnp.mean(sizes, axis=0) + jnp.finfo(sizes.dtype).tiny))
    left = jnp.where(jnp.isfinite(left), left, 0.0)
    left = left - jnp.mean(left, axis=0)
    functions = []
    for _ in range(RANK):
        direction, slopes = _function(standard, left)
        functions.append((direction, slopes))
        left = left + 2 * (standard @ direction)[:, None] * slopes
    directions, slopes = (jnp.stack(parts) for parts in zip(*functions, strict=True))
    return unit._replace(directions=directions.T, slopes=slopes)


def refreshed(widths: Widths, population: Population, has_edge: Bool[Array, ""] | bool) -> Widths:
    """The same functions of the place, with the size and the axes that fit these particles."""
    widths = widths._replace(base=_base(population, widths._replace(base=jnp.ones_like(widths.base))))
    if (found := _axes(population, widths)) is None:
        return widths
    axes, units = found
    # Scores that do not cancel, since there is an edge, all point the same way.
    return widths._replace(
        base=jnp.where(has_edge, 1.0, units) * widths.base,
        axes=jnp.where(has_edge, jnp.eye(len(axes), dtype=axes.dtype), axes),
    )


def _middle_and_spread(
    values: Float[Array, "n k"], num: int = _SORTED
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Median, and the standard deviation of a Gaussian with the same quartiles; 1 where that would be 0."""
    some = values[:: max(1, len(values) // num)]
    low, middle, high = quantiles(some, np.array([0.25, 0.5, 0.75]))
    spread = (high - low) / (2 * _QUARTILE)
    return middle, jnp.where(spread > 0, spread, 1.0)


def _function(
    standard: Float[Array, "n dim"], sizes: Float[Array, "n dim"]
) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
    """The linear function of the place that goes best with ln score^2, and the widths' slopes along it, up to 1."""
    num, dim = standard.shape
    # On the smaller side: in few dimensions, products that are summed over the particles once serve all rounds.
    products = standard.T @ sizes if dim <= num else None

    def along(loadings: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return standard.T @ (sizes @ loadings) if products is None else products @ loadings

    def against(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return (standard @ direction) @ sizes if products is None else direction @ products

    def unit(values: Array) -> Array:
        norm = jnp.sqrt(jnp.mean(values**2))
        return jnp.where(norm > 0, values / norm, 0.0)

    def improved(loadings: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """After all rounds; two at once where a product of matrices takes less time than a loop."""
        if products is None or dim > _FEW_DIMENSIONS:
            return jax.lax.fori_loop(0, _ROUNDS, lambda _, loadings: unit(against(along(loadings))), loadings)
        one = products.T @ products
        one = one / jnp.maximum(jnp.trace(one), jnp.finfo(one.dtype).tiny)
        two = one @ one
        for _ in range(_ROUNDS // 2):
            loadings = unit(two @ loadings)
        return loadings

    def scaled(direction: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
        """The direction along which particles have a standard deviation of 1, and twice the slopes."""
        length = jnp.sqrt(jnp.mean((standard @ direction) ** 2))
        direction = jnp.where(length > 0, direction / length, 0.0)
        return direction, against(direction) / num

    # From a start that no density has reason to be at right angles to.
    start = jnp.asarray(np.random.default_rng(dim).standard_normal(dim), standard.dtype)
    direction, slopes = scaled(along(improved(unit(start))))
    # Coordinates whose own widths vary have a part in it by chance, mostly; the others tell better, if they do.
    others = jnp.where(jnp.abs(slopes) < _LEAST_SLOPE * jnp.max(jnp.abs(slopes)), direction, 0.0)
    others = jnp.where(jnp.abs(others) > _LEAST_PART * jnp.max(jnp.abs(others)), others, 0.0)
    decide = jnp.sum(others**2) > _LEAST_PART * jnp.sum(direction**2)
    direction, slopes = scaled(jnp.where(decide, others, direction))
    explained = jnp.sum(slopes**2) / jnp.maximum(jnp.sum(jnp.mean(sizes**2, axis=0)), jnp.finfo(sizes.dtype).tiny)
    # Widths grow along it, at the steepest slope.
    sign = -jnp.sign(slopes[jnp.argmax(jnp.abs(slopes))])
    direction, slopes = sign * direction, sign * slopes
    steepest = jnp.where(explained > jnp.maximum(_LEAST_SHARE, _CHANCE / num), 0.5 * jnp.max(jnp.abs(slopes)), 0.0)
    return steepest * direction, jnp.where(steepest > 0, -0.5 * slopes / steepest, 0.0)


def _base(population: Population, widths: Widths) -> Float[Array, " dim"]:
    """What the widths have to be multiplied with.

    For a Gaussian mean |score| = sqrt(2 / pi) / sigma. The particles' own spread would also count how far modes are
    apart; it is only used as a limit, where the density is flat.
    """
    tiny = jnp.finfo(population.particles.dtype).tiny
    scores = jnp.abs(population.score) * widths.at(widths.places(population.particles))
    base = math.sqrt(2 / math.pi) / jnp.maximum(jnp.mean(scores, axis=0), tiny)
    spread = jnp.std(population.particles, axis=0)
    return jnp.minimum(base, jnp.where(spread > 0, spread, base))


def _axes(population: Population, widths: Widths) -> tuple[Float[Array, "dim dim"], Float[Array, " dim"]] | None:
    """The axes of the density around an average particle, or the coordinates' where these will do.

    Along a narrow valley they must point to within its share of the width. So the units in which they were found, as
    shares of the widths, come with them.
    """
    num, dim = population.particles.shape
    if not 1 < dim <= min(_MOST_DIMENSIONS, num // _LEAST_PARTICLES):
        return None
    units = widths.at(widths.places(population.particles))
    scores = units * population.score
    # As a whole: a vector of which only the large parts were cut would point across the density's narrow directions.
    largest = jnp.max(jnp.abs(scores), axis=1, keepdims=True)
    scores = scores * jnp.minimum(1.0, _FARTHEST / jnp.maximum(largest, 1.0))
    sizes = jnp.sqrt(jnp.mean(scores**2, axis=0))
    # A coordinate without any slope hangs together with no other.
    flat = jnp.where(sizes > 0, 0.0, 1.0)
    sizes = jnp.where(sizes > 0, sizes, 1.0)
    correlation = (scores / sizes).T @ (scores / sizes) / num + jnp.diag(flat)
    independent = jnp.eye(dim, dtype=scores.dtype)
    values, vectors = jnp.linalg.eigh(jnp.where(jnp.isfinite(correlation), correlation, independent))
    values = jnp.maximum(values, 10 * jnp.finfo(values.dtype).eps)
    # Eigenvalues of independent coordinates lie between the squares of 1 -+ sqrt(dim / num).
    chance = (1 + math.sqrt(dim / num)) ** 2
    clear = jnp.maximum(values[-1], 1 / values[0]) > _CLEARLY * chance
    spread = jnp.std((population.particles - widths.center) / units * sizes @ vectors, axis=0)
    # As in `_base`: where the density is flat, the particles' spread is the limit.
    lengths = jnp.minimum(1 / jnp.sqrt(values), jnp.maximum(spread, 1.0))
    return jnp.where(clear, vectors * lengths, independent), jnp.where(clear, 1 / sizes, 1.0)


def distance_covered(before: Population, after: Population, widths: Widths) -> Scalar:
    """The mean squared distance of the moves, as a share of that between independent particles of the local width."""
    steps = widths.lengths((after.particles - before.particles) / widths.at(widths.places(before.particles)))
    # Independent draws of variance 1 are 2 apart, squared; a particle that has left a narrow place counts as one.
    return 0.5 * jnp.mean(jnp.minimum(steps**2, _FARTHEST**2))


def width_spread(population: Population, widths: Widths) -> Scalar:
    """By what factor the density's width varies between particles that should have the same: 1 for a Gaussian.

    In units of its width the squared score of a particle in a Gaussian is chi-squared with D degrees of freedom.
    Compared are the 50% and 95% quantiles, whose ratio is the square of such a factor if widths are spread evenly about
    their median. Small scores tell less, since they may have one direction alone, as around a ring: their 5% quantile
    is compared with that of one degree of freedom.
    """
    dim = population.particles.shape[1]
    scores = widths.along(widths.at(widths.places(population.particles)) * population.score)
    levels = np.array([0.05, 0.5, 0.95])
    low, middle, high = jnp.maximum(quantiles(jnp.sum(scores**2, axis=1), levels), jnp.finfo(scores.dtype).tiny)
    # As Python's numbers, which leave single precision as it is.
    usual, of_one = ((2 * special.gammaincinv(degrees / 2, levels)).tolist() for degrees in (dim, 1))
    upper = high / middle * (usual[1] / usual[2])
    whole = jnp.sqrt(high / low * (of_one[0] / of_one[2]))
    return jnp.maximum(jnp.maximum(upper, whole), 1.0)


def width_ratio(population: Population, widths: Widths) -> Scalar:
    """By what factor the fitted widths differ between narrow places and wide ones, in the coordinate where most."""
    some = population.particles[:: max(1, len(population.particles) // _SORTED)]
    low, high = quantiles(widths.places(some) @ widths.slopes, np.array([0.025, 0.975]))
    return jnp.exp(jnp.max(high - low))


def places_covered(before: Population, after: Population, widths: Widths) -> Scalar:
    """The same for the slowest of the functions z, along which the width varies; infinite if there are none.

    By the median distance, since in heavy tails a few particles far out would decide.
    """
    start, end = widths.places(before.particles), widths.places(after.particles)
    _, spread = _middle_and_spread(start)
    # Independent draws are this far apart in the median, in standard deviations.
    usual = math.sqrt(2) * _QUARTILE
    [distance] = quantiles(jnp.abs(end - start), np.array([0.5]))
    shares = (distance / (usual * spread)) ** 2
    return jnp.min(jnp.where(jnp.any(widths.slopes != 0, axis=1), shares, jnp.inf))
