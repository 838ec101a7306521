"""Likelihoods of labels y, given a network's outputs z.

    Categorical:  ln p(y | z) = z_y - ln sum_c exp(z_c)     z has one output per class
    Bernoulli:    ln p(y | z) = ln sigmoid((2 y - 1) z)     z is one output
    Gaussian:     ln p(y | z) = ln N(y; z, s^2 I)           z has as many outputs as y has numbers

A prediction is made of class probabilities, or of means.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import _checks


class AbstractLikelihood(eqx.Module):
    """The law of one label, given the outputs that a network has for its row."""

    @abc.abstractmethod
    def check(self, labels: np.ndarray, num_outputs: int) -> Array:
        """The labels as `log_prob` takes them, or an error if they do not fit the network's outputs."""

    @abc.abstractmethod
    def log_prob(self, outputs: Float[Array, " outputs"], label: Array) -> Scalar:
        """ln p(label | outputs)."""

    @abc.abstractmethod
    def predict(self, outputs: Float[Array, " outputs"]) -> Float[Array, " values"]:
        """What one network predicts: class probabilities, or the mean."""


def _classes(labels: np.ndarray, num_classes: int) -> np.ndarray:
    whole = _checks.numbers("labels", labels)
    if whole.ndim != 1 or not np.all(np.isfinite(whole)) or np.any(whole != np.round(whole)):
        raise ValueError(f"labels must be one class index per row, got {_checks.show(labels)}; count classes from 0")
    wrong = whole[(whole < 0) | (whole >= num_classes)]
    if wrong.size:
        raise ValueError(
            f"labels must lie in 0, ..., {num_classes - 1}, got {wrong[0]:g}; count classes from 0, or give the "
            "network more outputs"
        )
    return whole.astype(np.int32)


class Categorical(AbstractLikelihood):
    """Labels are classes; the softmax of the outputs gives their probabilities."""

    def check(self, labels: np.ndarray, num_outputs: int) -> Array:
        """Class indices below the number of outputs, of which there are two or more."""
        if num_outputs < 2:
            raise ValueError(f"a categorical network must have 2 outputs or more, got {num_outputs}; use Bernoulli()")
        return jnp.asarray(_classes(labels, num_outputs))

    def log_prob(self, outputs: Float[Array, " outputs"], label: Array) -> Scalar:
        """ln softmax(outputs) at the label."""
        return jax.nn.log_softmax(outputs)[label]

    def predict(self, outputs: Float[Array, " outputs"]) -> Float[Array, " classes"]:
        """The softmax of the outputs."""
        return jax.nn.softmax(outputs)


class Bernoulli(AbstractLikelihood):
    """Labels are 0 or 1; the sigmoid of the only output is the probability of 1."""

    def check(self, labels: np.ndarray, num_outputs: int) -> Array:
        """Labels 0 or 1, and one output."""
        if num_outputs != 1:
            raise ValueError(f"a Bernoulli network must have 1 output, got {num_outputs}; use Categorical()")
        return jnp.asarray(_classes(labels, 2))

    def log_prob(self, outputs: Float[Array, " 1"], label: Array) -> Scalar:
        """ln sigmoid(+-output)."""
        return jax.nn.log_sigmoid((2 * label - 1) * outputs[0])

    def predict(self, outputs: Float[Array, " 1"]) -> Float[Array, " 2"]:
        """The probabilities of 0 and of 1."""
        return jax.nn.sigmoid(jnp.stack([-outputs[0], outputs[0]]))


class Gaussian(AbstractLikelihood):
    """Labels are numbers; the outputs are their means.

    Args:
        scale: The standard deviation of the noise.
    """

    scale: float = 1.0

    def __check_init__(self):
        _checks.positive("scale", self.scale)

    def check(self, labels: np.ndarray, num_outputs: int) -> Array:
        """Finite numbers, as many per row as there are outputs."""
        numbers = _checks.numbers("labels", labels).reshape(len(labels), -1)
        if numbers.shape[1] != num_outputs:
            raise ValueError(f"labels must have {num_outputs} numbers per row, got {numbers.shape[1]}; match them")
        if not np.all(np.isfinite(numbers)):
            raise ValueError(f"labels must be finite, got {_checks.show(labels)}; remove nan and inf")
        return jnp.asarray(numbers, float)

    def log_prob(self, outputs: Float[Array, " outputs"], label: Array) -> Scalar:
        """ln N(label; outputs, scale^2 I)."""
        return jnp.sum(jax.scipy.stats.norm.logpdf(label, outputs, self.scale))

    def predict(self, outputs: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """The means."""
        return outputs
