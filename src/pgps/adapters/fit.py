"""A Gaussian to start from, where a model has no prior to draw from: a quick variational fit, made wider.

Independent Gaussians x = m + s xi are fitted by Adam to the largest E ln p(x) + sum ln s, the evidence's lower bound
(Kucukelbir et al. 2017), with eight draws of xi per step. Such fits are too narrow, and a law to start from should be
too wide: the standard deviations are doubled.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree, Scalar

from pgps.density import Structure
from pgps.initial import Normal

_NUM_STEPS = 1000
_NUM_DRAWS = 8
_LEARNING_RATE = 0.1
# Narrow at first: draws from a wide Gaussian have scores so large and so varied that Adam hardly moves.
_FIRST_SCALE = 0.1
_WIDER = 2.0


def fitted_normal(
    logdensity_fn: Callable[[PyTree], Scalar], template: PyTree[Float[Array, "..."]], key: Array
) -> Normal:
    """Fit a wide Gaussian; it costs 8,000 gradient calls, which `Result.num_evaluations` does not count.

    Args:
        logdensity_fn: A log-density of one particle without constraints.
        template: A particle to begin with.
        key: A random key.
    """
    structure = Structure.of(jax.tree.map(jnp.asarray, template))
    mean, log_scale = _fit(lambda x: logdensity_fn(structure.unravel(x)), structure.ravel(template), key)
    if not all(bool(jnp.all(jnp.isfinite(x))) for x in (mean, log_scale, logdensity_fn(structure.unravel(mean)))):
        raise ValueError(
            "initial is needed here: the model has no prior to draw from, and a Gaussian fit to it diverged; pass a "
            "law of its unconstrained parameters, such as pgps.Normal(model.template, 1.0)"
        )
    return Normal(structure.unravel(mean), structure.unravel(_WIDER * jnp.exp(log_scale)))


def _fit(logdensity_fn: Callable[[Array], Scalar], start: Float[Array, " dim"], key: Array) -> tuple[Array, Array]:
    optimizer = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, _NUM_STEPS, 0.1))
    gradients = jax.vmap(jax.grad(logdensity_fn))

    def step(carry: tuple, key: Array) -> tuple[tuple, None]:
        params, state = carry
        mean, log_scale = params
        noise = jax.random.normal(key, (_NUM_DRAWS, start.size), start.dtype)
        scores = gradients(mean + jnp.exp(log_scale) * noise)
        # A draw outside the support, or beyond the largest number, has nothing to say.
        scores = jnp.where(jnp.all(jnp.isfinite(scores), axis=1, keepdims=True), scores, 0.0)
        downhill = -jnp.mean(scores, axis=0), -jnp.mean(scores * noise, axis=0) * jnp.exp(log_scale) - 1
        updates, state = optimizer.update(downhill, state)
        return (optax.apply_updates(params, updates), state), None

    params = (start, jnp.full_like(start, jnp.log(_FIRST_SCALE)))
    keys = jax.random.split(key, _NUM_STEPS)
    (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))((params, optimizer.init(params)))
    return params  # pyright: ignore[reportReturnType]
