"""The inner loop of Algorithm 3: gradient descent on the loss until it falls below a threshold.

    for k = 1..M:  theta <- theta - eta grad L_t(theta);  stop if L_t(theta) < epsilon

The loss is tested after the update, as the algorithm says. Parameters and the optimiser's moments are carried over to
the next t.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import AbstractField
from pgps.noise import fold_in
from pgps.trainers.base import AbstractTrainer, Training
from pgps.trainers.residual import Loss, evaluate_field, mean_square


class LearningRateDrop(eqx.Module):
    """Lower the learning rate for good, once the loss is below a level (weight recovery: 100, then 1e-2).

    Args:
        below: The level of the loss.
        learning_rate: The learning rate from then on.
    """

    below: float = 100.0
    learning_rate: float = 1e-2

    def __check_init__(self):
        _checks.positive("below", self.below)
        _checks.positive("learning_rate", self.learning_rate)


class GradientMemory(NamedTuple):
    """The optimiser's state, and whether the learning rate has been dropped."""

    optimizer: PyTree
    dropped: Bool[Array, ""]


class Gradient(AbstractTrainer):
    """Gradient descent with any optax optimiser, warm-started from the last t.

    Args:
        learning_rate: The learning rate eta.
        max_steps: The largest number of training steps per t, M.
        threshold: The loss epsilon at which training stops; 0 always takes `max_steps`, and so does None, which
            suits a loss that may be negative.
        drop: When to lower the learning rate, if ever.
        optimizer: Makes the optax transformation from a learning rate, such as `optax.adam` or `optax.sgd`.
        loss: `trainers.mean_square` (the paper's), `trainers.variance`, or any function (velocity, divergence,
            population) -> scalar.
    """

    learning_rate: float = 1e-2
    max_steps: int = 1000
    threshold: float | None = 1e-2
    drop: LearningRateDrop | None = None
    optimizer: Callable[[float], optax.GradientTransformation] = eqx.field(static=True, default=optax.adam)
    loss: Loss = eqx.field(static=True, default=mean_square)

    def __check_init__(self):
        _checks.positive("learning_rate", self.learning_rate)
        _checks.whole("max_steps", self.max_steps, at_least=1)
        if self.threshold is not None and _checks.number("threshold", self.threshold) < 0:
            raise ValueError(f"threshold must not be negative, got {_checks.show(self.threshold)}; pass 0 or more")
        _checks.function("optimizer", self.optimizer, "(learning_rate) -> optax.GradientTransformation")
        _checks.function("loss", self.loss, "(velocity, divergence, population) -> scalar")
        if self.drop is not None:
            _checks.instance("drop", self.drop, LearningRateDrop, "trainers.LearningRateDrop or None")

    def init(self, params: PyTree) -> GradientMemory:
        """The optimiser's first state."""
        return GradientMemory(self.optimizer(self.learning_rate).init(params), jnp.asarray(False))

    def fit(
        self,
        key: Array,
        t: Scalar,
        population: Population,
        field: AbstractField,
        params: PyTree,
        memory: GradientMemory,
        log_weights: Float[Array, " n"] | None = None,
    ) -> tuple[PyTree, GradientMemory, Training]:
        """Train until the loss is below the threshold, for `max_steps` at most."""

        def loss_fn(params: PyTree, key: Array) -> Scalar:
            velocity, divergence = evaluate_field(field, params, t, population.particles, key)
            return self.loss(velocity, divergence, population)

        def unfinished(carry: tuple) -> Bool[Array, ""]:
            k, _, _, loss, _ = carry
            more = True if self.threshold is None else loss >= self.threshold
            return (k == 0) | ((k < self.max_steps) & more)

        def train(carry: tuple) -> tuple:
            k, params, memory, loss, gradient = carry
            updates, optimizer = self._optimizer(memory).update(gradient, memory.optimizer, params)
            # Observed anew, since weight decay would shrink also what is not to be trained.
            params = field.observe(optax.apply_updates(params, updates), population)
            loss, gradient = jax.value_and_grad(loss_fn)(params, fold_in(key, k + 1))
            return k + 1, params, GradientMemory(optimizer, self._dropped(memory, loss)), loss, gradient

        params = field.observe(params, population)
        loss, gradient = jax.value_and_grad(loss_fn)(params, fold_in(key, 0))
        start = (jnp.asarray(0), params, memory, loss, gradient)
        num_steps, params, memory, loss, _ = jax.lax.while_loop(unfinished, train, start)
        return params, memory, Training(loss, num_steps, self._converged(loss))

    def _converged(self, loss: Scalar) -> Bool[Array, ""]:
        if self.threshold is None:
            return jnp.isfinite(loss)
        return (loss < self.threshold) | (self.threshold == 0)

    def _optimizer(self, memory: GradientMemory) -> optax.GradientTransformation:
        rate = self.learning_rate
        if self.drop is not None:
            rate = jnp.where(memory.dropped, self.drop.learning_rate, rate)
        return self.optimizer(rate)  # pyright: ignore[reportArgumentType]

    def _dropped(self, memory: GradientMemory, loss: Scalar) -> Bool[Array, ""]:
        return memory.dropped if self.drop is None else memory.dropped | (loss < self.drop.below)
