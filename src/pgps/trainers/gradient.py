"""The inner loop of Algorithm 3: gradient descent on the loss until it falls below a threshold.

    for k = 1..M:  theta <- theta - eta grad L_t(theta);  stop if L_t(theta) < epsilon

The loss is tested after the update, as the algorithm says. Parameters and the optimiser's moments are carried over to
the next t. Beyond the paper, particles may be held out, which tell when to stop and which parameters to keep.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import AbstractField
from pgps.noise import fold_in
from pgps.trainers.base import AbstractTrainer, Training
from pgps.trainers.residual import Loss, mean_square, variance

_MOST_HELD_OUT = 0.9


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


class Best(NamedTuple):
    """The parameters with the least loss on held-out particles, and how many steps ago they were found."""

    params: PyTree
    loss: Scalar
    age: Int[Array, ""]


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
        held_out: The share of the particles, the last ones, that are not trained on. Then the parameters with the
            least loss on those are kept, and training also stops when it has not fallen for `patience` steps; 0 trains
            on all and keeps the last ones, as in the paper.
        patience: How many steps the loss on held-out particles may fail to fall.
    """

    learning_rate: float = 1e-2
    max_steps: int = 1000
    threshold: float | None = 1e-2
    drop: LearningRateDrop | None = None
    optimizer: Callable[[float], optax.GradientTransformation] = eqx.field(static=True, default=optax.adam)
    loss: Loss = eqx.field(static=True, default=mean_square)
    held_out: float = eqx.field(static=True, default=0.0)
    patience: int = 50

    def __check_init__(self):
        _checks.positive("learning_rate", self.learning_rate)
        _checks.whole("max_steps", self.max_steps, at_least=1)
        if self.threshold is not None and _checks.number("threshold", self.threshold) < 0:
            raise ValueError(f"threshold must not be negative, got {_checks.show(self.threshold)}; pass 0 or more")
        _checks.function("optimizer", self.optimizer, "(learning_rate) -> optax.GradientTransformation")
        _checks.function("loss", self.loss, "(velocity, divergence, population) -> scalar")
        _checks.within("held_out", self.held_out, 0, _MOST_HELD_OUT)
        _checks.whole("patience", self.patience, at_least=1)
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
        taught, held = _divided(population, self.held_out)

        def loss_fn(params: PyTree, key: Array, population: Population = taught) -> Scalar:
            velocity, divergence = field.flows(params, t, population.particles, key)
            return self.loss(velocity, divergence, population)

        def watched(best: Best | None, params: PyTree, key: Array) -> Best | None:
            """The best parameters so far, if any particles are held out."""
            if best is None or held is None:
                return None
            loss = loss_fn(params, key, held)
            is_better = loss < best.loss
            params = jax.tree.map(lambda new, old: jnp.where(is_better, new, old), params, best.params)
            return Best(params, jnp.where(is_better, loss, best.loss), jnp.where(is_better, 0, best.age + 1))

        def unfinished(carry: tuple) -> Bool[Array, ""]:
            k, _, _, loss, _, best = carry
            more = True if self.threshold is None else loss >= self.threshold
            more = more if best is None else more & (best.age < self.patience)
            return (k == 0) | ((k < self.max_steps) & more)

        def train(carry: tuple) -> tuple:
            k, params, memory, loss, gradient, best = carry
            updates, optimizer = self._optimizer(memory).update(gradient, memory.optimizer, params)
            # Observed anew, since weight decay would shrink also what is not to be trained.
            params = field.observe(optax.apply_updates(params, updates), population)
            key_loss = fold_in(key, k + 1)
            loss, gradient = jax.value_and_grad(loss_fn)(params, key_loss)
            memory = GradientMemory(optimizer, self._dropped(memory, loss))
            return k + 1, params, memory, loss, gradient, watched(best, params, key_loss)

        params, key_first = field.observe(params, population), fold_in(key, 0)
        loss, gradient = jax.value_and_grad(loss_fn)(params, key_first)
        best = None if held is None else Best(params, loss_fn(params, key_first, held), jnp.asarray(0))
        start = (jnp.asarray(0), params, memory, loss, gradient, best)
        num_steps, params, memory, loss, _, best = jax.lax.while_loop(unfinished, train, start)
        if best is None or held is None:
            return params, memory, Training(loss, num_steps, self._converged(loss))
        r2 = _r2(*field.flows(best.params, t, held.particles, key_first), held)
        return best.params, memory, Training(best.loss, num_steps, self._converged(best.loss), r2)

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


def _divided(population: Population, held_out: float) -> tuple[Population, Population | None]:
    """The particles to train on, and those held out, if any are."""
    num_held = round(held_out * len(population.logdensity))
    if num_held == 0:
        return population, None
    taught = jax.tree.map(lambda leaf: leaf[:-num_held], population)
    return taught, jax.tree.map(lambda leaf: leaf[-num_held:], population)


def _r2(velocity: Float[Array, "n dim"], divergence: Float[Array, " n"], population: Population) -> Scalar:
    """The share of the variance of d/dt ln p_t that the field takes away."""
    none = variance(jnp.zeros_like(velocity), jnp.zeros_like(divergence), population)
    return 1 - variance(velocity, divergence, population) / none
