"""The paper's field (appendix B): phi(x) = W2 sigma(W1 x + b1) + b2, and deeper ones of the same kind.

With g = sigma'(W1 x + b1), in closed form for one hidden layer,

    div phi(x)                = trace(W2 diag(g) W1) = sum_h g_h (W1 W2)_hh
    det(I_D + dt W2 diag(g) W1) = det(I_H + dt diag(g) W1 W2)       taken on the smaller side

Deeper networks carry the Jacobian through their layers, which costs N x H x D memory, or estimate its trace with
Hutchinson's probes: E[v . J v] = trace(J) for independent signs v.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.density import Population
from pgps.fields.base import AbstractField
from pgps.fields.linear import Units


class Layer(NamedTuple):
    """A linear layer. A hidden one holds its weight as (in, out), the last one as (out, in).

    So each weight of a network with one hidden layer has the particle's dimension in front. XLA's dot products of a
    training step are faster that way round than transposed, where particles have few coordinates.
    """

    weight: Float[Array, "rows columns"]
    bias: Float[Array, " out"]


class MLPParameters(NamedTuple):
    """The network's layers, and the location and scale by which inputs are standardised."""

    hidden: tuple[Layer, ...]
    output: Layer
    location: Float[Array, " dim"] | None
    scale: Float[Array, " dim"] | None


class MLP(AbstractField):
    """A multilayer perceptron.

    Args:
        width: Hidden units per layer, H.
        depth: Hidden layers.
        activation: An elementwise function; the paper's is the sigmoid.
        standardise: Whether inputs are standardised by the mean and standard deviation of the particles at each t.
        num_probes: For two or more hidden layers: how many of Hutchinson's probes estimate the divergence. None
            computes it exactly.
    """

    width: int = eqx.field(static=True, default=64)
    depth: int = eqx.field(static=True, default=1)
    activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.sigmoid)
    standardise: bool = eqx.field(static=True, default=False)
    num_probes: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        _checks.whole("width", self.width, at_least=1)
        _checks.whole("depth", self.depth, at_least=1)
        _checks.function("activation", self.activation, "(array) -> array")
        if self.num_probes is not None:
            _checks.whole("num_probes", self.num_probes, at_least=1)
            if self.depth == 1:
                raise ValueError(
                    f"num_probes must be None for depth 1, got {self.num_probes}; its divergence is exact at no cost"
                )

    def init(self, key: Array, dim: int, dtype: Any) -> MLPParameters:
        """Weights and biases uniform in +-1/sqrt(inputs), as in the published code."""
        *keys, key_output = jax.random.split(key, self.depth + 1)
        sizes = [dim, *[self.width] * self.depth]
        hidden = [_linear(key, n, (n, m), m, dtype) for key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)]
        output = _linear(key_output, self.width, (dim, self.width), dim, dtype)
        zero, one = (jnp.zeros(dim, dtype), jnp.ones(dim, dtype)) if self.standardise else (None, None)
        return MLPParameters(tuple(hidden), output, zero, one)

    def observe(self, params: MLPParameters, population: Population) -> MLPParameters:
        """Set the input scales from the particles."""
        if not self.standardise:
            return params
        units = Units.of(population.particles)
        return params._replace(location=units.location, scale=units.scale)

    def apply(self, params: MLPParameters, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x); as in the published code the network has no input t."""
        for layer in self._hidden(params):
            x = self.activation(x @ layer.weight + layer.bias)
        return x @ params.output.weight.T + params.output.bias

    def apply_and_divergence(
        self, params: MLPParameters, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and its divergence: in closed form for one hidden layer, else exact or by Hutchinson's estimate."""
        if self.depth == 1:
            ((W1_T, b1),), (W2, b2) = self._hidden(params), params.output
            hidden, slope = self._activate(x @ W1_T + b1)
            return hidden @ W2.T + b2, slope @ jnp.sum(W1_T * W2, axis=0)
        if self.num_probes is None:
            velocity, jacobian = self._jacobian(params, x)
            return velocity, jnp.trace(jacobian)
        velocity, push = jax.linearize(lambda x: self.apply(params, t, x), x)
        probes = jax.random.rademacher(key, (self.num_probes, x.size), x.dtype)
        return velocity, jnp.mean(jax.vmap(lambda probe: probe @ push(probe))(probes))

    def log_det(self, params: MLPParameters, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt grad phi(x))|, on the smaller side where there is one hidden layer."""
        if self.depth == 1 and self.width < x.size:
            ((W1_T, b1),), (W2, _) = self._hidden(params), params.output
            _, slope = self._activate(x @ W1_T + b1)
            matrix = slope[:, None] * (W1_T.T @ W2)
        else:
            _, matrix = self._jacobian(params, x)
        return jnp.linalg.slogdet(jnp.eye(len(matrix), dtype=x.dtype) + dt * matrix)[1]

    def _hidden(self, params: MLPParameters) -> tuple[Layer, ...]:
        """The hidden layers, with the input's standardisation folded into the first one."""
        if params.location is None or params.scale is None:
            return params.hidden
        location, scale = jax.lax.stop_gradient((params.location, params.scale))
        first, *rest = params.hidden
        weight = first.weight / scale[:, None]
        return (Layer(weight, first.bias - location @ weight), *rest)

    def _activate(self, z: Float[Array, " width"]) -> tuple[Float[Array, " width"], Float[Array, " width"]]:
        """The activation and its derivative."""
        return jax.jvp(self.activation, (z,), (jnp.ones_like(z),))

    def _jacobian(
        self, params: MLPParameters, x: Float[Array, " dim"]
    ) -> tuple[Float[Array, " dim"], Float[Array, "dim dim"]]:
        """phi(x) and its Jacobian, layer by layer."""
        jacobian = jnp.eye(x.size, dtype=x.dtype)
        for layer in self._hidden(params):
            x, slope = self._activate(x @ layer.weight + layer.bias)
            jacobian = slope[:, None] * (layer.weight.T @ jacobian)
        return x @ params.output.weight.T + params.output.bias, params.output.weight @ jacobian


def _linear(key: Array, fan_in: int, shape: tuple[int, int], fan_out: int, dtype: Any) -> Layer:
    key_weight, key_bias = jax.random.split(key)
    limit = fan_in**-0.5
    weight = jax.random.uniform(key_weight, shape, dtype, -limit, limit)
    return Layer(weight, jax.random.uniform(key_bias, (fan_out,), dtype, -limit, limit))
