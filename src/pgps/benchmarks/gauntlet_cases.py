"""Targets of all shapes whose log evidence is known: what `pgps bench gauntlet` puts in front of a sampler.

Their truth is a closed form, a product of one-dimensional integrals, a transfer matrix or a sum over a grid. Each is
started from a law that a user would give who knows about the scale of the answer; in `hidden-mode` and `scales-from-1`
that user is mistaken, and should be told.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar
from scipy import special, stats

from pgps import metrics, targets
from pgps.benchmarks.evidence_cases import Case, Check
from pgps.initial import AbstractLaw, Normal, Uniform
from pgps.targets import AbstractPosterior

LogDensity = Callable[[Float[Array, " dim"]], Scalar]


class Known(AbstractPosterior):
    """A log-density, and its log evidence."""

    size: int = eqx.field(static=True)
    function: LogDensity = eqx.field(static=True)
    log_evidence: float = eqx.field(static=True)

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.size

    @property
    def reference_log_evidence(self) -> float:
        """ln Z."""
        return self.log_evidence

    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """The log-density at one vector."""
        return self.function(x)


def _gaussian(x: Array, mean: Any, sd: Any) -> Scalar:
    """The log-density of independent Gaussian coordinates."""
    return jnp.sum(-0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd) - 0.5 * math.log(2 * math.pi) + 0 * x)


def _mixture(x: Array, weights: Any, means: Any, sds: Any) -> Scalar:
    """The log-density of a mixture of Gaussians, of one width each."""
    parts = [_gaussian(x, mean, sd) + math.log(w) for w, mean, sd in zip(weights, means, sds, strict=True)]
    return jax.nn.logsumexp(jnp.stack(parts))


def _log_integral(function: Callable[[np.ndarray], np.ndarray], low: float, high: float, num: int = 200_001) -> float:
    """ln of the integral of exp(function) over an interval at whose ends that is 0 or the support ends."""
    x = np.linspace(low, high, num)
    values = function(x)
    top = np.max(values)
    return float(top + np.log(np.trapezoid(np.exp(values - top), x)))


def _log_sum(function: LogDensity, *axes: np.ndarray) -> float:
    """ln of the integral of exp(function) over a grid, in chunks."""
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    values = np.concatenate([_values(function, part) for part in np.array_split(grid, max(1, len(grid) // 500_000))])
    cell = sum(math.log(axis[1] - axis[0]) for axis in axes)
    return float(np.logaddexp.reduce(values)) + cell


def _values(function: LogDensity, points: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(function))(jnp.asarray(points, float)), float)


def _rotation(dim: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(dim).normal(size=(dim, dim)))[0]


def _above(coordinate: int, threshold: float, truth: float) -> Check:
    """The probability that a coordinate is above a threshold."""

    def measure(_: Any, particles: np.ndarray, log_weights: np.ndarray) -> float:
        return float(metrics.normalised_weights(log_weights, len(particles)) @ (particles[:, coordinate] > threshold))

    return Check(f"P(x_{coordinate} > {threshold:g})", measure, truth)


def correlated(x: Array, decades: float = 1.0) -> Scalar:
    """A Gaussian whose axes have lengths from 0.1 to 10, or so many decades shorter and longer than 1."""
    lengths = np.logspace(-decades, decades, x.size)
    return _gaussian(jnp.asarray(_rotation(x.size), x.dtype) @ x, 0.0, jnp.asarray(lengths, x.dtype))


def laplace(x: Array) -> Scalar:
    """Laplace's law in each coordinate."""
    return -jnp.sum(jnp.abs(x))


def student(x: Array) -> Scalar:
    """Student's law with 2 degrees of freedom in each coordinate: it has no variance."""
    return -1.5 * jnp.sum(jnp.log1p(x**2 / 2))


def ring(x: Array) -> Scalar:
    """A ring of radius 4 and width 0.2."""
    return -0.5 * ((jnp.sqrt(jnp.sum(x**2)) - 4) / 0.2) ** 2


def moons(x: Array) -> Scalar:
    """Two arcs that face each other."""
    arcs = jnp.logaddexp(-0.5 * ((x[0] - 2) / 0.3) ** 2, -0.5 * ((x[0] + 2) / 0.3) ** 2)
    return -0.5 * ((jnp.sqrt(jnp.sum(x**2)) - 2) / 0.2) ** 2 + arcs


def banana(x: Array) -> Scalar:
    """Rosenbrock's density in two dimensions."""
    return -(100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2) / 20


def rosenbrock(x: Array) -> Scalar:
    """The hybrid Rosenbrock density (Pagani, Wiegand and Nadarajah 2022): all coordinates bend with the first."""
    return -0.5 * (x[0] - 1) ** 2 - 5 * jnp.sum((x[1:] - x[0] ** 2) ** 2)


def widths(x: Array) -> Scalar:
    """Modes of width 1 and 0.1."""
    return _mixture(x, (0.7, 0.3), (-3.0, 3.0), (1.0, 0.1))


def eight_modes(x: Array) -> Scalar:
    """Eight modes at random places, with masses from 1/36 to 8/36."""
    means = np.random.default_rng(8).normal(size=(8, x.size)) * 3
    return _mixture(x, np.arange(1, 9) / 36, means, np.full(8, 0.7))


def two_far(x: Array) -> Scalar:
    """Two modes that are 22 standard deviations apart."""
    return _mixture(x, (0.3, 0.7), (-2.0, 2.0), (1.0, 1.0))


def crossed(x: Array) -> Scalar:
    """Two elongated Gaussians that cross, with their long axes along different directions."""
    turned = jnp.asarray(_rotation(x.size), x.dtype) @ x
    sds = jnp.asarray(np.logspace(-0.7, 0.7, x.size), x.dtype)
    return jnp.logaddexp(_gaussian(x - 1, 0.0, sds), _gaussian(turned + 1, 0.0, sds)) - math.log(2)


def box(x: Array) -> Scalar:
    """Flat, with an edge."""
    return jnp.where(jnp.all(jnp.abs(x) < 1), 0.0, -jnp.inf)


def truncated(x: Array) -> Scalar:
    """A Gaussian of which a corner is left."""
    return jnp.where(jnp.all(x > 0.5), _gaussian(x, 0.0, 1.0), -jnp.inf)


def walls(x: Array) -> Scalar:
    """A Gaussian whose prior was uniform, near the walls of that."""
    return jnp.where(jnp.all(jnp.abs(x) < 5), _gaussian(x, 3.0, 2.0), -jnp.inf)


def exponential(x: Array) -> Scalar:
    """The density is largest at its edge."""
    return jnp.where(jnp.all(x > 0), -jnp.sum(x), -jnp.inf)


_SCHOOLS = np.array([[28.0, 15], [8, 10], [-3, 16], [7, 11], [-1, 9], [1, 11], [18, 10], [12, 18]])


def schools(x: Array) -> Scalar:
    """Eight schools (Rubin 1981): effects around a mean, with the logarithm of their spread as a coordinate."""
    mean, log_tau, effects = x[0], x[1], x[2:]
    effect, error = jnp.asarray(_SCHOOLS.T, x.dtype)
    prior = _gaussian(mean, 0.0, 5.0) + math.log(2 / (5 * math.pi)) - jnp.log1p(jnp.exp(2 * log_tau) / 25) + log_tau
    return prior + _gaussian(effects, mean, jnp.exp(log_tau)) + _gaussian(effect, effects, error)


def _schools_truth() -> float:
    effect, error = _SCHOOLS.T

    def given(log_tau: float) -> float:
        tau = math.exp(log_tau)
        covariance = np.diag(error**2 + tau**2) + 25.0
        prior = math.log(2 / (5 * math.pi)) - math.log1p(tau**2 / 25) + log_tau
        squares = effect @ np.linalg.solve(covariance, effect)
        return prior - 0.5 * float(squares + np.linalg.slogdet(2 * np.pi * covariance)[1])

    return _log_integral(np.vectorize(given), -25, 25, 4001)


def sinusoid(x: Array) -> Scalar:
    """Frequency and phase of an oscillation, seen in noise: many narrow modes."""
    times = np.linspace(0, 6, 40)
    data = np.sin(4.3 * times + 0.7) + 0.8 * np.random.default_rng(3).normal(size=40)
    model = jnp.sin(x[0] * jnp.asarray(times, x.dtype) + x[1])
    return _gaussian(x, jnp.array([4.0, 0.0]), jnp.array([2.0, 1.5])) + _gaussian(
        jnp.asarray(data, x.dtype), model, 0.8
    )


def wells(x: Array) -> Scalar:
    """A chain of double wells, phi^4: two states that all coordinates take together, and walls between them."""
    return -jnp.sum((x**2 - 1) ** 2) - 0.5 * jnp.sum((x[1:] - x[:-1]) ** 2) + 0.05 * jnp.sum(x)


def _wells_truth(dim: int) -> float:
    x = np.linspace(-4, 4, 1601)
    own = np.exp(-((x**2 - 1) ** 2) + 0.05 * x)
    step = np.exp(-0.5 * (x[:, None] - x) ** 2) * (x[1] - x[0])
    state = own
    for _ in range(dim - 1):
        state = own * (step @ state)
    return float(np.log(np.sum(state) * (x[1] - x[0])))


# Returns of 40 days, drawn once: the logarithm of their variance walks at random, by 0.3 a day.
_RETURNS = np.exp(0.15 * np.cumsum(np.random.default_rng(2).normal(size=40))) * np.random.default_rng(3).normal(size=40)


def volatility(x: Array) -> Scalar:
    """Stochastic volatility: steps of a random walk, and the logarithm of their size, under a prior N(0, I).

    The prior reaches to where the log-density is -1e30, and overflows.
    """
    log_variance = jnp.exp(x[0] - 1) * jnp.cumsum(x[1:])
    squares = jnp.asarray(_RETURNS**2, x.dtype)
    return _gaussian(x, 0.0, 1.0) - 0.5 * jnp.sum(
        log_variance + squares * jnp.exp(-log_variance) + math.log(2 * math.pi)
    )


def _volatility_truth() -> float:
    """The walk is summed over a grid, day by day, for each size of its steps; below 0.02 that hardly matters."""
    h = np.linspace(-16, 16, 1601)
    sizes = np.linspace(-6, 4, 41)

    def given(log_size: float) -> float:
        walk = stats.norm.pdf(h[:, None] - h, scale=max(math.exp(log_size), 0.02)) * (h[1] - h[0])
        state, total = (np.arange(len(h)) == len(h) // 2).astype(float), 0.0
        for square in _RETURNS**2:
            state = np.exp(-0.5 * (h + square * np.exp(-h) + math.log(2 * math.pi))) * (walk @ state)
            total += math.log(np.sum(state))
            state /= np.sum(state)
        return total + float(stats.norm.logpdf(log_size, -1.0, 1.0))

    return float(np.logaddexp.reduce([given(size) for size in sizes])) + math.log(sizes[1] - sizes[0])


def saddles(x: Array) -> Scalar:
    """The potential of Mueller and Brown (1979), at a temperature of 20: three bent basins, and walls that overflow."""
    heights, centers = jnp.array([-200.0, -100.0, -170.0, 15.0]), jnp.array([[1.0, 0], [0, 0.5], [-0.5, 1.5], [-1, 1]])
    a, b, c = jnp.array([[-1.0, -1.0, -6.5, 0.7], [0.0, 0.0, 11.0, 0.6], [-10.0, -10.0, -6.5, 0.7]])
    u, v = (x - centers).T
    return -0.05 * jnp.sum(heights * jnp.exp(a * u**2 + b * u * v + c * v**2))


def spike_and_slab(x: Array) -> Scalar:
    """In each coordinate a spike of width 0.01 and a slab of width 3, with half of the mass each."""
    spike, slab = (-0.5 * (x / sd) ** 2 - math.log(sd * math.sqrt(2 * math.pi)) for sd in (0.01, 3.0))
    return jnp.sum(jnp.logaddexp(spike, slab) - math.log(2))


_SIGNALS = np.array([0.1, -0.5, 3.0, 6.0])


def horseshoe(x: Array) -> Scalar:
    """Four effects under the horseshoe prior, with logarithms of their half-Cauchy scales."""
    effects, log_scales = x[:4], x[4:]
    prior = jnp.sum(math.log(2 / math.pi) + log_scales - jnp.log1p(jnp.exp(2 * log_scales)))
    return (
        prior + _gaussian(effects, 0.0, jnp.exp(log_scales)) + _gaussian(jnp.asarray(_SIGNALS, x.dtype), effects, 1.0)
    )


def _horseshoe_truth() -> float:
    def given(log_scale: np.ndarray, signal: float) -> np.ndarray:
        prior = math.log(2 / math.pi) + log_scale - np.log1p(np.exp(2 * log_scale))
        return prior + stats.norm.logpdf(signal, scale=np.sqrt(1 + np.exp(2 * log_scale)))

    return sum(_log_integral(partial(given, signal=signal), -30, 30) for signal in _SIGNALS)


def ridge(x: Array) -> Scalar:
    """A sharp ridge along a sine."""
    return _gaussian(x[0], 0.0, 2.0) + _gaussian(x[1], jnp.sin(2 * x[0]), 0.03)


def gumbel(x: Array) -> Scalar:
    """Gumbel's law in each coordinate: a tail to one side, and a cliff on the other."""
    return -jnp.sum(x + jnp.exp(-x))


def hidden_mode(x: Array) -> Scalar:
    """Half of the mass where the initial law never is."""
    return _mixture(x, (0.5, 0.5), (0.0, 25.0), (1.0, 1.0))


def scales(x: Array) -> Scalar:
    """Coordinates from 1e-4 to 1e4."""
    return _gaussian(x, 0.0, jnp.asarray(_SCALES, x.dtype))


_SCALES = np.logspace(-4, 4, 6)


def _glm(dim: int, data: Callable[[Array], Scalar]) -> LogDensity:
    """A prior N(0, I) and a likelihood that is a product over directions at right angles to each other."""
    rotation = _rotation(dim)
    return lambda x: _gaussian(x, 0.0, 1.0) + data(jnp.asarray(rotation, x.dtype) @ x)


@cache
def _logistic_data(dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(50)
    slopes = rng.normal(size=(dim, 6)) * 1.5
    return slopes, rng.integers(0, 2, size=(dim, 6)) * 2.0 - 1


def _logistic_likelihood(z: Array) -> Scalar:
    slopes, signs = _logistic_data(z.size)
    return jnp.sum(jax.nn.log_sigmoid(jnp.asarray(slopes * signs, z.dtype) * z[:, None]))


def _logistic_truth(dim: int) -> float:
    def along(z: np.ndarray, row: np.ndarray) -> np.ndarray:
        return stats.norm.logpdf(z) - np.logaddexp(0, -row * z[:, None]).sum(1)

    return sum(_log_integral(partial(along, row=row), -12, 12, 20_001) for row in np.prod(_logistic_data(dim), axis=0))


_COUNTS = np.array([0.0, 1, 3, 0, 12, 5, 2, 30, 0, 1])


def _poisson_likelihood(z: Array) -> Scalar:
    counts = jnp.asarray(_COUNTS, z.dtype)
    return jnp.sum(counts * (1 + z) - jnp.exp(1 + z)) - float(np.sum(special.gammaln(_COUNTS + 1)))


def _poisson_truth() -> float:
    def along(z: np.ndarray, count: float) -> np.ndarray:
        return stats.norm.logpdf(z) + stats.poisson.logpmf(count, np.exp(1 + z))

    return sum(_log_integral(partial(along, count=count), -12, 8) for count in _COUNTS)


def labels(x: Array) -> Scalar:
    """The means of a mixture of three: six modes, one for each order of its components."""
    data = np.random.default_rng(7).normal(size=40) + np.repeat([-3.0, 0.0, 3.5], [12, 14, 14])
    parts = -0.5 * (jnp.asarray(data, x.dtype)[:, None] - x) ** 2 - 0.5 * math.log(2 * math.pi) - math.log(3)
    return _gaussian(x, 0.0, 5.0) + jnp.sum(jax.nn.logsumexp(parts, axis=1))


def _case(
    dim: int, function: LogDensity, log_evidence: float | Callable[[], float], initial: AbstractLaw, *checks: Check
) -> Case:
    truth = cache(lambda: log_evidence() if callable(log_evidence) else log_evidence)
    return Case(lambda _: (Known(dim, function, truth()), initial), checks)


def _normal(mean: Any, scale: Any, dim: int) -> Normal:
    return Normal(mean, scale, shape=(dim,))


_LINE = np.linspace(-8, 8, 4001)
CASES: dict[str, Case] = {
    "correlated-20d": _case(20, correlated, 0.0, _normal(0.0, 5.0, 20)),
    "valley-10d": _case(10, partial(correlated, decades=2.0), 0.0, _normal(0.0, 10.0, 10)),
    "far-gaussian-5d": _case(5, partial(_gaussian, mean=15.0, sd=0.5), 0.0, _normal(0.0, 1.0, 5), _above(0, 15, 0.5)),
    "laplace-10d": _case(10, laplace, 10 * math.log(2), _normal(0.0, 2.0, 10), _above(0, 2, 0.5 * math.exp(-2))),
    "student-5d": _case(
        5, student, 5 * math.log(2 * math.sqrt(2)), _normal(0.0, 5.0, 5), _above(0, 4, float(stats.t.sf(4, 2)))
    ),
    "ring-2d": _case(2, ring, math.log(2 * math.pi * 4 * 0.2 * math.sqrt(2 * math.pi)), _normal(0.0, 2.0, 2)),
    "moons-2d": _case(
        2, moons, lambda: _log_sum(moons, _LINE[::2], _LINE[::2]), _normal(0.0, 2.0, 2), _above(0, 0, 0.5)
    ),
    "banana-2d": _case(
        2, banana, math.log(2 * math.pi), _normal(0.0, 3.0, 2), _above(0, 5, float(stats.norm.sf(4 / math.sqrt(10))))
    ),
    "rosenbrock-8d": _case(
        8,
        rosenbrock,
        0.5 * math.log(2 * math.pi) + 3.5 * math.log(math.pi / 5),
        _normal(0.0, 2.0, 8),
        _above(0, 1, 0.5),
    ),
    "funnel-10d": Case(lambda _: targets.funnel(), (_above(0, 3, float(stats.norm.sf(1))),)),
    "widths-2d": _case(2, widths, 0.0, _normal(0.0, 3.0, 2), _above(0, 1.5, 0.3)),
    "widths-5d": _case(5, widths, 0.0, _normal(0.0, 3.0, 5), _above(0, 1.5, 0.3)),
    "eight-modes-10d": _case(10, eight_modes, 0.0, _normal(0.0, 4.0, 10)),
    "two-far-30d": _case(
        30,
        two_far,
        0.0,
        _normal(0.0, 3.0, 30),
        _above(0, 0, 0.3 * float(stats.norm.sf(2)) + 0.7 * float(stats.norm.cdf(2))),
    ),
    "crossed-10d": _case(10, crossed, 0.0, _normal(0.0, 3.0, 10)),
    "box-4d": _case(4, box, 4 * math.log(2), _normal(0.0, 2.0, 4), _above(0, 0.5, 0.25)),
    "truncated-5d": _case(5, truncated, 5 * float(stats.norm.logsf(0.5)), _normal(0.0, 2.0, 5)),
    "walls-5d": _case(
        5,
        walls,
        5 * math.log(stats.norm.cdf(1) - stats.norm.cdf(-4)),
        Uniform(-5.0, 5.0, shape=(5,)),
        _above(0, 4, float((stats.norm.cdf(1) - stats.norm.cdf(0.5)) / (stats.norm.cdf(1) - stats.norm.cdf(-4)))),
    ),
    "exponential-3d": _case(3, exponential, 0.0, Uniform(0.0, 10.0, shape=(3,)), _above(0, 1, math.exp(-1))),
    "schools-10d": _case(10, schools, _schools_truth, Normal(jnp.zeros(10), jnp.array([5.0, 1.0] + [10.0] * 8))),
    "sinusoid-2d": _case(
        2,
        sinusoid,
        lambda: _log_sum(sinusoid, np.linspace(-8, 16, 4001), np.linspace(-9, 9, 2001)),
        _normal(jnp.array([4.0, 0.0]), jnp.array([2.0, 1.5]), 2),
    ),
    "wells-10d": _case(10, wells, lambda: _wells_truth(10), _normal(0.0, 1.5, 10)),
    "volatility-41d": _case(41, volatility, _volatility_truth, _normal(0.0, 1.0, 41)),
    "saddles-2d": _case(
        2,
        saddles,
        lambda: _log_sum(saddles, np.linspace(-2.5, 2, 2001), np.linspace(-1.5, 3, 2001)),
        _normal(jnp.array([0.0, 0.5]), 1.0, 2),
    ),
    "spike-slab-3d": _case(
        3, spike_and_slab, 0.0, _normal(0.0, 3.0, 3), _above(0, 0.1, 0.25 + 0.5 * (float(stats.norm.sf(0.1 / 3)) - 0.5))
    ),
    "horseshoe-8d": _case(8, horseshoe, _horseshoe_truth, _normal(0.0, 3.0, 8)),
    "ridge-2d": _case(2, ridge, 0.0, _normal(0.0, 2.0, 2), _above(0, 2, float(stats.norm.sf(1)))),
    "gumbel-10d": _case(10, gumbel, 0.0, _normal(0.0, 2.0, 10), _above(0, 2, 1 - math.exp(-math.exp(-2)))),
    "hidden-mode-2d": _case(2, hidden_mode, 0.0, _normal(0.0, 1.0, 2), _above(0, 12, 0.5)),
    "scales-6d": _case(6, scales, 0.0, Normal(jnp.zeros(6), jnp.asarray(3 * _SCALES, float))),
    "scales-from-1-6d": _case(6, scales, 0.0, _normal(0.0, 1.0, 6)),
    "gaussian-100d": _case(100, partial(_gaussian, mean=0.5, sd=0.7), 0.0, _normal(0.0, 1.0, 100), _above(0, 0.5, 0.5)),
    "logistic-50d": _case(50, _glm(50, _logistic_likelihood), lambda: _logistic_truth(50), _normal(0.0, 1.0, 50)),
    "poisson-10d": _case(10, _glm(10, _poisson_likelihood), _poisson_truth, _normal(0.0, 1.0, 10)),
    "labels-3d": _case(3, labels, lambda: _log_sum(labels, *[np.linspace(-9, 9, 181)] * 3), _normal(0.0, 4.0, 3)),
}
