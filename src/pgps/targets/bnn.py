"""Bayesian neural networks: the posterior of a network's parameters theta, given labelled rows (f_i, y_i).

    ln p(theta, y) = sum_j ln N(theta_j; 0, s^2) + sum_i ln p(y_i | f_theta(f_i)),      i = 1, ..., n.

On a random batch B of b rows the sum over rows is n / b times that over B: its mean over batches is the whole sum.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from pgps import _checks
from pgps.density import AbstractStochasticDensity
from pgps.initial import Normal
from pgps.metrics.calibration import disagreement, predictive_entropy
from pgps.noise import draw_integers
from pgps.result import Result
from pgps.targets.likelihoods import AbstractLikelihood, Categorical, Gaussian

# Rows that a prediction treats at once, so that its memory is bounded.
_ROWS_AT_ONCE = 512


def perceptron(sizes: Sequence[int], activation: Callable[[Array], Array] = jax.nn.sigmoid) -> eqx.nn.Sequential:
    """A multilayer perceptron with these numbers of units, from the inputs to the outputs, which are linear.

    Its parameters are only a template: a posterior's particles bring their own.
    """
    sizes = [*sizes]
    if len(sizes) < 2:
        raise ValueError(f"sizes must name inputs and outputs, got {_checks.show(sizes)}; as in (60, 32, 2)")
    for size in sizes:
        _checks.whole("sizes", size, at_least=1)
    _checks.function("activation", activation, "(array) -> array")
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    layers: list[Callable[..., Any]] = []
    for key, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers += [eqx.nn.Linear(inputs, outputs, key=key), eqx.nn.Lambda(activation)]
    return eqx.nn.Sequential(layers[:-1])


class Prediction(NamedTuple):
    """What all networks together say about some rows.

    Attributes:
        mean: The class probabilities of each row, or its mean outputs, averaged over the networks by weight.
        entropy: How uncertain the prediction is: the entropy of the averaged probabilities, in nats; for a Gaussian
            likelihood that of a normal law with the predictive variance.
        disagreement: The part of the entropy that is due to the networks' not agreeing.
    """

    mean: Float[np.ndarray, "n values"]
    entropy: Float[np.ndarray, " n"]
    disagreement: Float[np.ndarray, " n"]


class BNN(AbstractStochasticDensity):
    """The posterior of a neural network's parameters; a particle is the network's pytree of arrays.

    Args:
        network: An Equinox module that takes one row of features and returns its outputs, or `perceptron(...)`.
        features: One row per observation.
        labels: One label per row, as the likelihood wants them.
        likelihood: The law of a label given outputs: `Categorical()`, `Bernoulli()` or `Gaussian(scale)`.
        prior_scale: The standard deviation of each parameter under the prior.
        batch_size: Rows of a random batch, with replacement, for methods that can do with estimates; None always
            takes all rows.
        per_particle: Whether each particle has batches of its own; else all share one, which is cheaper.
        rescale: Whether a batch counts for all rows, n / b times: without, the posterior is another one.
    """

    network: PyTree
    static: PyTree
    features: Float[Array, "n d"]
    labels: Array
    likelihood: AbstractLikelihood
    prior_scale: Array
    likelihood_factor: Array
    batch_size: int | None = eqx.field(static=True)
    per_particle: bool = eqx.field(static=True)
    rescale: bool = eqx.field(static=True)

    def __init__(
        self,
        network: Callable[[Float[Array, " d"]], Float[Array, " outputs"]],
        features: Any,
        labels: Any,
        likelihood: AbstractLikelihood | None = None,
        *,
        prior_scale: float = 1.0,
        batch_size: int | None = None,
        per_particle: bool = False,
        rescale: bool = True,
    ):
        likelihood = Categorical() if likelihood is None else likelihood
        _checks.function("network", network, "(row of features) -> outputs")
        _checks.instance("likelihood", likelihood, AbstractLikelihood, "targets.Categorical, Bernoulli, Gaussian")
        _checks.positive("prior_scale", prior_scale)
        rows, given = _checks.numbers("features", features), np.asarray(labels)
        if rows.ndim != 2 or not len(rows) or given.shape[:1] != rows.shape[:1]:
            raise ValueError(
                f"features and labels must have shapes (n, d) and (n,), got {rows.shape} and {given.shape}; "
                "give each row one label"
            )
        if not np.all(np.isfinite(rows)):
            i, j = np.argwhere(~np.isfinite(rows))[0]
            raise ValueError(f"features must be finite, got {rows[i, j]} in row {i}, column {j}; drop it or fill it in")
        if batch_size is not None:
            _checks.whole("batch_size", batch_size, at_least=1)
            batch_size = None if batch_size >= len(rows) else batch_size
        self.features = jnp.asarray(rows, float)
        self.network, self.static = eqx.partition(network, eqx.is_inexact_array)
        if not jax.tree.leaves(self.network):
            raise ValueError(
                f"network must have parameters, got {_checks.show(network)}; give it floating-point arrays"
            )
        self.labels = likelihood.check(given, _num_outputs(network, self.features[0]))
        self.likelihood = likelihood
        self.prior_scale = jnp.asarray(prior_scale, self.features.dtype)
        self.likelihood_factor = jnp.ones((), self.features.dtype)
        self.batch_size, self.per_particle, self.rescale = batch_size, per_particle, rescale

    @property
    def prior(self) -> Normal:
        """The prior, which is also a law to start from."""
        return Normal(jax.tree.map(jnp.zeros_like, self.network), float(self.prior_scale))

    def outputs(self, particle: PyTree, features: Float[Array, "n d"]) -> Float[Array, "n outputs"]:
        """One network's outputs for some rows."""
        return jax.vmap(eqx.combine(particle, self.static))(features)

    def log_likelihood(self, particle: PyTree) -> Scalar:
        """The sum over rows of ln p(label | outputs)."""
        return jnp.sum(jax.vmap(self.likelihood.log_prob)(self.outputs(particle, self.features), self.labels))

    def __call__(self, particle: PyTree) -> Scalar:
        """ln p(particle, labels)."""
        scale = self.prior_scale
        terms = [jnp.sum(jax.scipy.stats.norm.logpdf(leaf, 0.0, scale)) for leaf in jax.tree.leaves(particle)]
        return jnp.sum(jnp.stack(terms)) + self.likelihood_factor * self.log_likelihood(particle)

    def estimate(self, key: Array) -> "BNN":
        """The posterior with a random batch in place of all rows."""
        if self.batch_size is None:
            return self
        num = len(self.labels)
        rows = draw_integers(key, self.batch_size, num)
        factor = num / self.batch_size if self.rescale else 1.0
        batch = (self.features[rows], self.labels[rows], factor * self.likelihood_factor)
        return eqx.tree_at(lambda bnn: (bnn.features, bnn.labels, bnn.likelihood_factor), self, batch)

    def network_predictions(self, particles: PyTree, features: Any) -> Float[np.ndarray, "particles n values"]:
        """What each network predicts for each row: class probabilities, or mean outputs."""
        rows = _checks.numbers("features", features)
        width = self.features.shape[1]
        if rows.ndim != 2 or rows.shape[1] != width or not np.all(np.isfinite(rows)):
            raise ValueError(
                f"features must be finite rows of {width} numbers, got {_checks.show(features)}; "
                "standardise them as the training rows were"
            )
        blocks = np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE))
        return np.concatenate([np.asarray(_predict(self, particles, jnp.asarray(block))) for block in blocks], axis=1)

    def predict(self, result: Result, features: Any) -> Prediction:
        """The weighted networks' joint prediction for some rows."""
        p = self.network_predictions(result.particles, features)
        if isinstance(self.likelihood, Gaussian):
            return _gaussian_prediction(p, result.log_weights, float(self.likelihood.scale))
        weights = np.asarray(jax.nn.softmax(result.log_weights))
        mean = np.einsum("p,pnc->nc", weights, p)
        return Prediction(mean, predictive_entropy(p, result.log_weights), disagreement(p, result.log_weights))


@eqx.filter_jit
def _predict(bnn: BNN, particles: PyTree, rows: Float[Array, "n d"]) -> Float[Array, "particles n values"]:
    return jax.vmap(lambda particle: jax.vmap(bnn.likelihood.predict)(bnn.outputs(particle, rows)))(particles)


def _num_outputs(network: Callable[[Array], Array], row: Array) -> int:
    try:
        outputs = eqx.filter_eval_shape(network, row)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"network fails on a row of {row.size} features ({reason}); match its inputs") from error
    if getattr(outputs, "ndim", None) != 1:
        raise ValueError(
            f"network must return a vector of outputs for one row, got {_checks.show(outputs)}; flatten it"
        )
    return outputs.shape[0]


def _gaussian_prediction(means: np.ndarray, log_weights: Array, scale: float) -> Prediction:
    weights = np.asarray(jax.nn.softmax(log_weights))
    mean = np.einsum("p,pnc->nc", weights, means)
    spread = np.einsum("p,pnc->nc", weights, (means - mean) ** 2)

    def entropy(variance: np.ndarray) -> np.ndarray:
        return 0.5 * np.sum(np.log(2 * np.pi * np.e * variance), axis=1)

    total = entropy(scale**2 + spread)
    return Prediction(mean, total, total - entropy(np.full_like(spread, scale**2)))
