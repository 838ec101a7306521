"""Linear fields by one solve: ridge regression on the residual, its strength and family chosen on held-out particles.

With weights W_i, g_p standardised to unit mean square, and bars for weighted means, the coefficients minimise

    sum_i W_i (r(x_i) - mean r)^2 + lambda |c|^2,      r(x) = d/dt ln p_t(x) + sum_p c_p g_p(x).

The last third of the particles is held out. The strength lambda with the largest R^2 there,

    R^2 = 1 - var(r) / var(d/dt ln p_t),

is used for a second solve with all particles. Families compete by what a long step would leave of the held-out
particles: the conditional effective sample size of weights exp(h r), with h = 1 / sd(d/dt ln p_t). Unlike R^2 it sees
a few particles that a field leaves behind, in the arms or the tails of a density, whose weights would grow and grow.
Where no family does better than none, the coefficients are 0: the field moves nothing, and particles are carried by
weights and moves alone. Whoever wins again, family or none, is challenged less often as a run goes on, and not at all
while it wastes next to nothing.

Of many particles, some are enough: n rows leave an excess of about P / n of the residual's variance for P coefficients.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import AbstractField
from pgps.fields.linear import AbstractLinearField, LinearParameters
from pgps.fields.selection import Chosen, Selection
from pgps.steppers.conditional_ess import conditional_ess
from pgps.trainers.base import AbstractTrainer, Training

# The most fits between two contests, of which there is also at most one for so many fits so far, since early in a run
# the winner changes. There is a contest at once if the residual's variance grows by such a factor, from this on.
_LONGEST_PAUSE = 7
_FITS_FOR_ONE = 2
_LARGEST_GROWTH = 2.0
_LEAST_GROWN = 0.02
# The last winner stays if it wastes at most so many times the particles that the best one does. It is not challenged at
# all while it wastes so little, for other things limit the step then, and by reserves only if all others waste so much.
_LIKE = 1.2
_LITTLE = 0.01
_MUCH = 0.15


class Contests(NamedTuple):
    """When the families of a selection compete."""

    wait: Int[Array, ""]
    """After how many fits they do next,"""
    pause: Int[Array, ""]
    """after how many they did last,"""
    left: Scalar
    """and 1 - R^2 of the winner then; 1 if none helped."""
    num_fits: Int[Array, ""]
    """Fits so far,"""
    ridge: Int[Array, ""]
    """and the number of the ridge's strength that was best."""

    @property
    def due(self) -> Bool[Array, ""]:
        """Whether they compete now."""
        return self.wait == 0

    @property
    def helped(self) -> Bool[Array, ""]:
        """Whether any of them helped when they did last."""
        return self.left < 1

    def after(self, left: Scalar, is_same: Bool[Array, ""]) -> "Contests":
        """What follows a fit that leaves so much, by the same family as the last one or by another."""
        again = (self.helped == (left < 1)) & (is_same | ~self.helped)
        num_fits = self.num_fits + 1
        longest = jnp.minimum(num_fits // _FITS_FOR_ONE, _LONGEST_PAUSE)
        pause = jnp.where(again, jnp.minimum(2 * self.pause + 1, longest), 0)
        keeps = again & (left <= _LARGEST_GROWTH * jnp.maximum(self.left, _LEAST_GROWN))
        held = Contests(pause, pause, left, num_fits, self.ridge)
        not_held = self._replace(wait=jnp.where(keeps, self.wait - 1, 0), num_fits=num_fits)
        return jax.tree.map(lambda new, old: jnp.where(self.due, new, old), held, not_held)


class Samples(NamedTuple):
    """What the regression knows of each particle, a column: features g, the time derivative and the weight."""

    features: Float[Array, "features n"]
    rates: Float[Array, " n"]
    weights: Float[Array, " n"]

    def part(self, columns: slice) -> "Samples":
        """Some of the particles."""
        return Samples(self.features[:, columns], self.rates[columns], self.weights[columns])

    def normalised(self) -> "Samples":
        """The same with weights that sum to 1."""
        return self._replace(
            weights=self.weights / jnp.maximum(jnp.sum(self.weights), jnp.finfo(self.weights.dtype).tiny)
        )


Solver = Callable[[Scalar], Float[Array, " features"]]
"""Takes the strength of a ridge, and returns the coefficients."""


class Fit(NamedTuple):
    """What a fit is worth on held-out particles: R^2, the share that a long step would leave, and the strength."""

    r2: Scalar
    share: Scalar
    ridge: Int[Array, ""]


class Tried(NamedTuple):
    """The best strength so far, and its residuals on held-out particles."""

    r2: Scalar
    ridge: Int[Array, ""]
    residuals: Float[Array, " n"]


class LeastSquares(AbstractTrainer):
    """Fits a linear field, or the best family of a `fields.Selection`, by ridge regression.

    Args:
        ridges: Strengths to choose from, as shares of the features' mean square.
        least_r2: The held-out R^2 below which the field is not worth its evaluation, and is 0.
        most_rows: Fit to so many particles at most, evenly over their order; memory for their features is bounded then.
    """

    ridges: tuple[float, ...] = (1e-5, 1e-3, 1e-2, 1e-1)
    least_r2: float = 0.1
    most_rows: int = eqx.field(static=True, default=2**15)

    def __check_init__(self):
        if not isinstance(self.ridges, tuple) or not self.ridges:
            raise TypeError(f"ridges must be a tuple of numbers, got {_checks.show(self.ridges)}; as in (1e-4, 1e-2)")
        for ridge in self.ridges:
            _checks.positive("ridges", ridge)
        _checks.within("least_r2", self.least_r2, 0, 1)
        _checks.whole("most_rows", self.most_rows, at_least=3)

    def check(self, field: AbstractField) -> None:
        """Raise unless the field is linear, or one of several such."""
        if not isinstance(field, AbstractLinearField | Selection):
            raise TypeError(
                f"trainer LeastSquares fits linear fields, got {_checks.show(field)}; use trainers.Gradient() for it, "
                "or trainers.NoTraining() if it has nothing to fit"
            )

    def init(self, params: PyTree) -> Contests | None:
        """A contest of the families at once, if there are several; fits themselves start afresh each time."""
        if not isinstance(params, Chosen):
            return None
        zero = jnp.asarray(0)
        return Contests(zero, zero, jnp.ones_like(params.params[0].coefficients[0]), zero, zero)

    def fit(
        self,
        key: Array,
        t: Scalar,
        population: Population,
        field: AbstractField,
        params: PyTree,
        memory: Contests | None,
        log_weights: Float[Array, " n"] | None = None,
    ) -> tuple[PyTree, Contests | None, Training]:
        """Solve for every family, and use the best one, or for the last best one if no contest is due."""
        if log_weights is None:
            log_weights = jnp.zeros_like(population.logdensity)
        if (stride := -(-len(log_weights) // self.most_rows)) > 1:
            population, log_weights = jax.tree.map(lambda leaf: leaf[::stride], population), log_weights[::stride]
        if isinstance(field, Selection):
            assert memory is not None
            return self._choose(population, field, params, memory, log_weights)
        assert isinstance(field, AbstractLinearField)
        params, fit = self._solve(field, params, population, log_weights, 0, len(self.ridges))
        return params, None, self._report(fit.r2)

    def _choose(
        self,
        population: Population,
        field: Selection,
        params: Chosen,
        contests: Contests,
        log_weights: Float[Array, " n"],
    ) -> tuple[Chosen, Contests, Training]:
        """The family that leaves most particles effective; between contests, the last one with the last strength."""
        fitted, fits = self._compete(population, field, params, contests, log_weights)
        # By chance the best of several that are alike is another one each time, and there would be no end of contests.
        keeps = (fits.r2[params.choice] > 0) & (1 - fits.share[params.choice] <= _LIKE * (1 - jnp.max(fits.share)))
        best = jnp.where(contests.due & ~keeps, jnp.argmax(fits.share), params.choice)
        fit = jax.tree.map(lambda values: values[best], fits)
        contests = contests.after(1 - fit.r2, best == params.choice)._replace(ridge=fit.ridge)
        return Chosen(fitted, best), contests, self._report(fit.r2)

    def _compete(
        self,
        population: Population,
        field: Selection,
        params: Chosen,
        contests: Contests,
        log_weights: Float[Array, " n"],
    ) -> tuple[tuple[PyTree, ...], Fit]:
        """Every family's parameters and what its fit is worth; those that take no part keep theirs, and leave nothing.

        The last winner goes first, and alone between contests; then the others in their order, as long as it takes.
        """
        dim = population.particles.shape[1]
        families, num_regular = field.suited(dim), len(field.regular(dim))
        num = len(families)
        most_rounds = jnp.where(contests.due, num, contests.helped.astype(int))
        first = jnp.where(contests.due, 0, contests.ridge)
        last = jnp.where(contests.due, len(self.ridges), contests.ridge + 1)

        def enter(
            number: int, family: AbstractLinearField, fitted: tuple[PyTree, ...], fits: Fit
        ) -> tuple[tuple[PyTree, ...], Fit]:
            own, fit = self._solve(family, fitted[number], population, log_weights, first, last)
            fits = jax.tree.map(lambda values, value: values.at[number].set(value), fits, fit)
            return (*fitted[:number], own, *fitted[number + 1 :]), fits

        entries = [partial(enter, *entry) for entry in enumerate(families)]

        def next_one(rounds: Int[Array, ""]) -> Int[Array, ""]:
            return jnp.where(rounds == 0, params.choice, rounds - (rounds <= params.choice))

        def underway(carry: tuple) -> Bool[Array, ""]:
            rounds, _, fits = carry
            bar = jnp.where(next_one(rounds) < num_regular, _LITTLE, _MUCH)
            return (rounds < most_rounds) & ((rounds == 0) | (1 - jnp.max(fits.share) > bar))

        def go_on(carry: tuple) -> tuple:
            rounds, *so_far = carry
            return rounds + 1, *jax.lax.switch(next_one(rounds), entries, *so_far)

        nothing = jnp.zeros((num,), contests.left.dtype)
        absent = Fit(nothing, nothing - jnp.inf, jnp.zeros((num,), int))
        _, fitted, fits = jax.lax.while_loop(underway, go_on, (jnp.asarray(0), params.params, absent))
        return fitted, fits

    def _report(self, r2: Scalar) -> Training:
        return Training(1 - r2, jnp.asarray(1), jnp.asarray(True), r2)

    def _solve(
        self,
        field: AbstractLinearField,
        params: LinearParameters,
        population: Population,
        log_weights: Float[Array, " n"],
        first: Int[Array, ""] | int,
        last: Int[Array, ""] | int,
    ) -> tuple[LinearParameters, Fit]:
        """The coefficients, by the best of the strengths from `first` to before `last`."""
        params = field.observe(params, population)
        samples = _samples(field, params, population, log_weights)
        sizes = jnp.sqrt(samples.features**2 @ samples.weights)
        sizes = jnp.where(sizes > 0, sizes, 1.0)
        cut = 2 * len(samples.rates) // 3
        fitted, held_out = samples.part(slice(cut)), samples.part(slice(cut, None)).normalised()
        if len(sizes) > cut:
            of_some, of_all = (_dual_ridge(some, sizes) for some in (fitted.normalised(), samples))
        else:
            # Sums over the particles that were fitted and over the others are sums over all of them.
            sums, others = _products(fitted), _products(samples.part(slice(cut, None)))
            of_some, of_all = _ridge(sums, sizes), _ridge(sums + others, sizes)
        ridges = jnp.stack([jnp.asarray(ridge, samples.rates.dtype) for ridge in self.ridges])

        def try_one(number: Int[Array, ""], best: Tried) -> Tried:
            residuals = held_out.rates + of_some(ridges[number]) @ held_out.features
            r2 = _r2(held_out, residuals)
            return jax.tree.map(lambda a, b: jnp.where(r2 > best.r2, a, b), Tried(r2, number, residuals), best)

        nothing = Tried(-jnp.inf * jnp.ones_like(samples.rates[0]), jnp.asarray(first), held_out.rates)
        best = jax.lax.fori_loop(first, last, try_one, nothing)
        coefficients = of_all(ridges[best.ridge])
        share, share_of_none = _share_left(held_out, best.residuals), _share_left(held_out, held_out.rates)
        worthwhile = (best.r2 >= self.least_r2) & (share > share_of_none) & jnp.all(jnp.isfinite(coefficients))
        fit = Fit(
            jnp.where(worthwhile, best.r2, 0.0), jnp.where(worthwhile, share, share_of_none), jnp.asarray(best.ridge)
        )
        return params._replace(coefficients=jnp.where(worthwhile, coefficients, 0.0)), fit


def _samples(
    field: AbstractLinearField, params: LinearParameters, population: Population, log_weights: Float[Array, " n"]
) -> Samples:
    features = field.rows(params, population.particles, population.score)
    # 0 x is 0 unless x is nan or infinite.
    usable = population.usable & (jnp.zeros_like(features[:, 0]) @ features == 0)
    weights = jnp.where(usable, jnp.exp(log_weights - jnp.max(log_weights)), 0.0)
    weights = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
    rates = jnp.where(usable, population.time_derivative, 0.0)
    return Samples(jnp.where(usable, features, 0.0), rates - weights @ rates, weights)


def _products(samples: Samples) -> Float[Array, "features+2 features+2"]:
    """Weighted sums of products of each two of the features, the rates and 1."""
    rows = jnp.concatenate([samples.features, samples.rates[None], jnp.ones_like(samples.rates)[None]])
    rows = rows * jnp.sqrt(samples.weights)
    return rows @ rows.T


def _ridge(products: Float[Array, "features+2 features+2"], sizes: Float[Array, " features"]) -> Solver:
    """The normal equations, for features in units of their sizes."""
    products = products / jnp.maximum(products[-1, -1], jnp.finfo(products.dtype).tiny)
    covariances = (products[:-1, :-1] - jnp.outer(products[-1, :-1], products[-1, :-1]))[:-1]
    gram, right = covariances[:, :-1] / jnp.outer(sizes, sizes), -covariances[:, -1] / sizes
    return lambda ridge: _solved(gram, right, ridge) / sizes


def _dual_ridge(samples: Samples, sizes: Float[Array, " features"]) -> Solver:
    """The same by the dual of the normal equations, for particles that are fewer than features."""
    root = jnp.sqrt(samples.weights)
    design = root * (samples.features - (samples.features @ samples.weights)[:, None]) / sizes[:, None]
    gram, right = design.T @ design, -root * (samples.rates - samples.weights @ samples.rates)
    return lambda ridge: design @ _solved(gram, right, ridge) / sizes


def _solved(gram: Float[Array, "k k"], right: Float[Array, " k"], ridge: Scalar) -> Float[Array, " k"]:
    lower = jax.lax.linalg.cholesky(gram + ridge * jnp.eye(len(gram), dtype=gram.dtype))
    right = right[:, None]
    for transpose in (False, True):
        right = jax.lax.linalg.triangular_solve(lower, right, left_side=True, lower=True, transpose_a=transpose)
    return right[:, 0]


def _r2(samples: Samples, residuals: Float[Array, " n"]) -> Scalar:
    r2 = 1 - _variance(residuals, samples.weights) / _variance(samples.rates, samples.weights)
    return jnp.where(jnp.isfinite(r2), r2, -jnp.inf)


def _share_left(samples: Samples, residuals: Float[Array, " n"]) -> Scalar:
    """The conditional effective sample size of a step that would halve it or so, were there no field."""
    spread = jnp.sqrt(_variance(samples.rates, samples.weights))
    horizon = jnp.where(spread > 0, 1 / spread, 0.0)
    share = conditional_ess(jnp.log(samples.weights), horizon * residuals)
    return jnp.where(jnp.isfinite(share), share, 0.0)


def _variance(values: Float[Array, " n"], weights: Float[Array, " n"]) -> Scalar:
    return weights @ (values - weights @ values) ** 2
