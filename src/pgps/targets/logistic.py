"""Bayesian logistic regression.

    x = (w, b) ~ N(0, s^2 I),    y_i | x ~ Bernoulli(sigmoid(w . f_i + b)),    i = 1, ..., n,

    ln p(y, x) = ln N(x; 0, s^2 I) + sum_i ln sigmoid((2 y_i - 1) (w . f_i + b)).

The log evidence is ln p(y). The Sonar problem, which the field's samplers are compared on, has all 208 rows, features
standardised, and s = 1.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.initial import Normal
from pgps.targets.base import AbstractPosterior, as_floats, is_traced
from pgps.targets.datasets import load_dataset, standardise


class LogisticRegression(AbstractPosterior):
    """The posterior of weights and a bias, which is the last coordinate; call it for ln p(labels, x).

    Args:
        features: One row per observation, without a constant column: the bias is one.
        labels: 0 or 1 for each row.
        prior_scale: The prior's standard deviation, of the weights and of the bias.
        reference_log_evidence: ln p(labels), where it is known.
    """

    features: Float[Array, "n features"] = eqx.field(converter=as_floats)
    labels: Float[Array, " n"] = eqx.field(converter=as_floats)
    prior_scale: Scalar = eqx.field(converter=as_floats, default=1.0)
    reference_log_evidence: float | None = eqx.field(static=True, default=None)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __check_init__(self):
        if self.features.ndim != 2 or self.labels.shape != self.features.shape[:1]:
            raise ValueError(
                f"features and labels must have shapes (n, d) and (n,), got {self.features.shape} and "
                f"{self.labels.shape}; give each row one label"
            )
        if is_traced(self):
            return
        _checks.positive("prior_scale", self.prior_scale)
        if not np.all(np.isfinite(self.features)):
            raise ValueError(f"features must be finite, got {_checks.show(self.features)}; remove nan and inf")
        if not np.all(np.isin(self.labels, (0, 1))):
            raise ValueError(f"labels must be 0 or 1, got {_checks.show(np.unique(self.labels))}; recode them")

    @property
    def dim(self) -> int:
        """One weight per feature, and the bias."""
        return self.features.shape[-1] + 1

    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """ln p(labels, x)."""
        logits = self.features @ x[:-1] + x[-1]
        log_norm = x.size * (jnp.log(self.prior_scale) + 0.5 * math.log(2 * math.pi))
        log_prior = -0.5 * jnp.sum((x / self.prior_scale) ** 2) - log_norm
        return log_prior + jnp.sum(jax.nn.log_sigmoid((2 * self.labels - 1) * logits))


def sonar() -> tuple[LogisticRegression, Normal]:
    """Sonar, features standardised over all rows, in 61 dimensions, from the prior N(0, I).

    The log evidence is that of the literature's long runs, to 0.01.
    """
    data = load_dataset("sonar")
    (features,) = standardise(data.features)
    target = LogisticRegression(features, data.labels, reference_log_evidence=-108.38)
    return target, Normal(shape=(target.dim,))
