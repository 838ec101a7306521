"""Linear fields by one solve: ridge regression on the residual, its strength and family chosen on held-out particles.

With weights W_i, g_p standardised to unit mean square, and bars for weighted means, the coefficients minimise

    sum_i W_i (r(x_i) - mean r)^2 + lambda |c|^2,      r(x) = d/dt ln p_t(x) + sum_p c_p g_p(x).

The last third of the particles is held out. The strength lambda with the largest R^2 there,

    R^2 = 1 - var(r) / var(d/dt ln p_t),

is used for a second solve with all particles. Families compete by what a long step would leave of the held-out
particles: the conditional effective sample size of weights exp(h r), with h = 1 / sd(d/dt ln p_t). Unlike R^2 it sees
a few particles that a field leaves behind, in the arms or the tails of a density, whose weights would grow and grow.
Where no family does better than none, the coefficients are 0: the field moves nothing, and particles are carried by
weights and moves alone. Whoever wins again, family or none, is challenged less often as a run goes on.

Of many particles, some are enough: n rows leave an excess of about P / n of the residual's variance for P coefficients.
"""

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
# the winner changes, and the growth of the residual's variance at which there is a contest at once.
_LONGEST_PAUSE = 7
_FITS_FOR_ONE = 2
_LARGEST_GROWTH = 2.0


class Contests(NamedTuple):
    """When the families of a selection compete."""

    wait: Int[Array, ""]
    """After how many fits they do next,"""
    pause: Int[Array, ""]
    """after how many they did last,"""
    left: Scalar
    """and 1 - R^2 of the winner then; 1 if none helped."""
    num_fits: Int[Array, ""]
    """Fits so far."""

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
        keeps = again & (left <= _LARGEST_GROWTH * self.left)
        held = Contests(pause, pause, left, num_fits)
        not_held = self._replace(wait=jnp.where(keeps, self.wait - 1, 0), num_fits=num_fits)
        return jax.tree.map(lambda new, old: jnp.where(self.due, new, old), held, not_held)


class Samples(NamedTuple):
    """Rows of the regression: features g, time derivatives and weights."""

    features: Float[Array, "n features"]
    rates: Float[Array, " n"]
    weights: Float[Array, " n"]

    def part(self, rows: slice) -> "Samples":
        """Some of the rows."""
        return Samples(self.features[rows], self.rates[rows], self.weights[rows])

    def normalised(self) -> "Samples":
        """The same with weights that sum to 1."""
        return self._replace(
            weights=self.weights / jnp.maximum(jnp.sum(self.weights), jnp.finfo(self.weights.dtype).tiny)
        )


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
        return Contests(zero, zero, jnp.ones_like(params.params[0].coefficients[0]), zero)

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
        params, r2, _ = self._solve(field, params, population, log_weights)
        return params, None, self._report(r2)

    def _choose(
        self,
        population: Population,
        field: Selection,
        params: Chosen,
        contests: Contests,
        log_weights: Float[Array, " n"],
    ) -> tuple[Chosen, Contests, Training]:
        """The family that leaves most particles effective; between contests, the last one."""
        nothing = jnp.zeros_like(contests.left)

        def enter(number: int, family: AbstractLinearField) -> tuple[LinearParameters, Scalar, Scalar]:
            return jax.lax.cond(
                contests.due | (contests.helped & (params.choice == number)),
                lambda own: self._solve(family, own, population, log_weights),
                lambda own: (own, nothing, nothing - jnp.inf),
                params.params[number],
            )

        fitted, r2s, shares = zip(*[enter(*entry) for entry in enumerate(field.families)], strict=True)
        best = jnp.where(contests.due, jnp.argmax(jnp.stack(shares)), params.choice)
        r2 = jnp.stack(r2s)[best]
        return Chosen(fitted, best), contests.after(1 - r2, best == params.choice), self._report(r2)

    def _report(self, r2: Scalar) -> Training:
        return Training(1 - r2, jnp.asarray(1), jnp.asarray(True), r2)

    def _solve(
        self,
        field: AbstractLinearField,
        params: LinearParameters,
        population: Population,
        log_weights: Float[Array, " n"],
    ) -> tuple[LinearParameters, Scalar, Scalar]:
        """The coefficients, the held-out R^2 that chose them, and the share that a long step would leave effective."""
        params = field.observe(params, population)
        rows, sizes = _rows(field, params, population, log_weights)
        cut = 2 * len(rows.rates) // 3
        held_out = rows.part(slice(cut, None)).normalised()
        ridges = jnp.stack([jnp.asarray(ridge, rows.rates.dtype) for ridge in self.ridges])
        if len(sizes) > cut:
            candidates, of_all = _dual_ridge(rows.part(slice(cut)).normalised(), ridges), partial(_dual_ridge, rows)
        else:
            # Sums over the particles that were fitted and over the others are sums over all of them.
            sums, others = _products(rows.part(slice(cut))), _products(rows.part(slice(cut, None)))
            candidates, of_all = _ridge(sums, ridges), partial(_ridge, sums + others)
        residuals = held_out.rates + candidates @ held_out.features.T
        r2s = jax.vmap(partial(_r2, held_out))(residuals)
        best = jnp.argmax(r2s)
        coefficients = of_all(ridges[best][None])[0] / sizes
        share, share_of_none = _share_left(held_out, residuals[best]), _share_left(held_out, held_out.rates)
        worthwhile = (r2s[best] >= self.least_r2) & (share > share_of_none) & jnp.all(jnp.isfinite(coefficients))
        return (
            params._replace(coefficients=jnp.where(worthwhile, coefficients, 0.0)),
            jnp.where(worthwhile, r2s[best], 0.0),
            jnp.where(worthwhile, share, share_of_none),
        )


def _rows(
    field: AbstractLinearField, params: LinearParameters, population: Population, log_weights: Float[Array, " n"]
) -> tuple[Samples, Float[Array, " features"]]:
    """The rows, centred and with features of unit mean square, and what the features were divided by for that."""
    features = jax.vmap(lambda x, score: field.features(params, x, score))(population.particles, population.score)
    # 0 x is 0 unless x is nan or infinite.
    usable = population.usable & (features @ jnp.zeros_like(features[0]) == 0)
    weights = jnp.where(usable, jnp.exp(log_weights - jnp.max(log_weights)), 0.0)
    weights = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
    features = jnp.where(usable[:, None], features, 0.0)
    rates = jnp.where(usable, population.time_derivative, 0.0)
    sizes = jnp.sqrt(weights @ features**2)
    sizes = jnp.where(sizes > 0, sizes, 1.0)
    return Samples((features - weights @ features) / sizes, rates - weights @ rates, weights), sizes


def _products(rows: Samples) -> Float[Array, "features+2 features+2"]:
    """Weighted sums of products of each two of the features, the rates and 1."""
    columns = jnp.concatenate([rows.features, rows.rates[:, None], jnp.ones_like(rows.rates)[:, None]], axis=1)
    columns = jnp.sqrt(rows.weights)[:, None] * columns
    return columns.T @ columns


def _ridge(
    products: Float[Array, "features+2 features+2"], ridges: Float[Array, " ridges"]
) -> Float[Array, "ridges features"]:
    """Coefficients for each strength, by the normal equations."""
    products = products / jnp.maximum(products[-1, -1], jnp.finfo(products.dtype).tiny)
    covariances = products[:-1, :-1] - jnp.outer(products[-1, :-1], products[-1, :-1])
    return _solved(covariances[:-1, :-1], -covariances[:-1, -1], ridges)


def _dual_ridge(rows: Samples, ridges: Float[Array, " ridges"]) -> Float[Array, "ridges features"]:
    """The same by the dual of the normal equations, for rows that are fewer than features."""
    root = jnp.sqrt(rows.weights)
    design = root[:, None] * (rows.features - rows.weights @ rows.features)
    return _solved(design @ design.T, -root * (rows.rates - rows.weights @ rows.rates), ridges) @ design


def _solved(
    gram: Float[Array, "k k"], right: Float[Array, " k"], ridges: Float[Array, " ridges"]
) -> Float[Array, "ridges k"]:
    lower = jax.lax.linalg.cholesky(gram + ridges[:, None, None] * jnp.eye(len(gram), dtype=gram.dtype))
    right = jnp.broadcast_to(right[:, None], (len(ridges), len(gram), 1))
    for transpose in (False, True):
        right = jax.lax.linalg.triangular_solve(lower, right, left_side=True, lower=True, transpose_a=transpose)
    return right[..., 0]


def _r2(rows: Samples, residuals: Float[Array, " n"]) -> Scalar:
    r2 = 1 - _variance(residuals, rows.weights) / _variance(rows.rates, rows.weights)
    return jnp.where(jnp.isfinite(r2), r2, -jnp.inf)


def _share_left(rows: Samples, residuals: Float[Array, " n"]) -> Scalar:
    """The conditional effective sample size of a step that would halve it or so, were there no field."""
    spread = jnp.sqrt(_variance(rows.rates, rows.weights))
    horizon = jnp.where(spread > 0, 1 / spread, 0.0)
    share = conditional_ess(jnp.log(rows.weights), horizon * residuals)
    return jnp.where(jnp.isfinite(share), share, 0.0)


def _variance(values: Float[Array, " n"], weights: Float[Array, " n"]) -> Scalar:
    return weights @ (values - weights @ values) ** 2
