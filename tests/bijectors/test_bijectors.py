"""What every bijector must keep: its constraint, the way back, and a Jacobian that autodiff agrees with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest
from jaxtyping import Array

import pgps
from helpers import BIJECTORS, CONSTRAINTS, assert_close, assert_moments, normal_array, over
from pgps.bijectors import (
    AbstractBijector,
    Identity,
    Interval,
    Ordered,
    Positive,
    Simplex,
    unconstrain,
    unconstrain_law,
)

# pyright: reportArgumentType=false, reportCallIssue=false

KEY = jax.random.key(4)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", BIJECTORS)
def test_values_obey_the_constraint_and_come_back(name: str):
    bijector, x = BIJECTORS[name], 2 * normal_array(50, 3)
    y = bijector.forward(x)
    assert np.all(CONSTRAINTS[name](np.asarray(y)))
    assert_close(bijector.inverse(y), x, 1e-9)
    # The constrained values are all reached, so that the way back is the inverse from both sides.
    assert_close(bijector.forward(bijector.inverse(y)), y, 1e-12)


@pytest.mark.usefixtures("x64")
@over("bijector", BIJECTORS)
def test_log_det_is_that_of_the_jacobian(bijector: AbstractBijector):
    @jax.jit
    @jax.vmap
    def log_det_and_jacobians(x: Array) -> tuple[Array, Array, Array]:
        back = jax.jacfwd(bijector.inverse)(bijector.forward(x))
        return bijector.log_det(x), jax.jacfwd(bijector.forward)(x), back

    log_det, forward, back = map(np.asarray, log_det_and_jacobians(2 * normal_array(5, 3, seed=1)))
    # A vector of probabilities is known by all but the last.
    np.testing.assert_allclose(log_det, np.linalg.slogdet(forward[:, :3]).logabsdet, rtol=1e-11, atol=1e-11)
    if not isinstance(bijector, Simplex):
        np.testing.assert_allclose(log_det, -np.linalg.slogdet(back).logabsdet, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("x64")
@over("bijector", BIJECTORS)
def test_arrays_are_mapped_along_the_last_axis(bijector: AbstractBijector):
    x = normal_array(2, 5, 3)
    rows = x.reshape(10, 3)
    assert_close(bijector.forward(x).reshape(10, -1), jnp.stack([bijector.forward(row) for row in rows]))
    assert_close(bijector.log_det(x), sum(bijector.log_det(row) for row in rows))


@over("bijector", BIJECTORS)
def test_far_out_in_single_precision_nothing_is_nan(bijector: AbstractBijector):
    for x in (jnp.full(3, 60.0), jnp.full(3, -60.0), jnp.array([-60.0, 60.0, 0.0])):
        y = bijector.forward(x)
        assert y.dtype == jnp.float32
        # On the boundary, where rounding has put some, the way back is far out, and not infinite.
        log_det, slope = jax.jit(jax.value_and_grad(bijector.log_det))(x)
        for value in (y, log_det, bijector.inverse(y), slope):
            assert np.all(np.isfinite(value))


def test_the_simplex_has_its_centre_at_0():
    np.testing.assert_allclose(Simplex().forward(jnp.zeros(6)), np.full(7, 1 / 7), rtol=1e-6)


def integral(density: Callable[[Array], Array], dim: int) -> float:
    """Of exp(density) over unconstrained vectors, by a rule that is exact to all digits for smooth peaks."""
    axis = jnp.linspace(-30.0, 30.0, 801)
    points = jnp.stack(jnp.meshgrid(*[axis] * dim), axis=-1).reshape(-1, dim)
    return float(np.sum(np.exp(jax.jit(jax.vmap(density))(points))) * (axis[1] - axis[0]) ** dim)


@pytest.mark.usefixtures("x64")
def test_densities_keep_their_mass():
    gamma = unconstrain(lambda y: stats.gamma.logpdf(y[0], 2.5), Positive())
    beta = unconstrain(lambda y: stats.beta.logpdf((y[0] - 1) / 3, 1.5, 4.0) - jnp.log(3.0), Interval(1.0, 4.0))
    dirichlet = unconstrain(lambda y: stats.dirichlet.logpdf(y, jnp.array([1.5, 2.0, 3.5])), Simplex())
    pair = unconstrain(lambda y: jnp.log(2.0) + jnp.sum(stats.norm.logpdf(y)), Ordered())
    masses = [integral(gamma, 1), integral(beta, 1), integral(dirichlet, 2), integral(pair, 2)]
    np.testing.assert_allclose(masses, 1, atol=1e-6)


PARAMETERS = {"scale": Positive(), "weights": Simplex(), "effects": (Identity(), Interval(0.0, 2.0))}


def log_joint(y: dict) -> Array:
    """A normalised density on PARAMETERS' constraints, with different means everywhere."""
    return (
        stats.gamma.logpdf(y["scale"], 3.0)
        + stats.dirichlet.logpdf(y["weights"], jnp.array([1.0, 2.0, 3.0]))
        + stats.norm.logpdf(y["effects"][0], 5.0)
        - jnp.log(2.0)
    )


def test_a_constrained_density_is_sampled_with_its_evidence():
    density = unconstrain(log_joint, PARAMETERS)
    start = {"scale": jnp.zeros(()), "weights": jnp.zeros(2), "effects": (jnp.zeros(()), jnp.zeros(()))}
    method = pgps.methods.TemperedSMC(moves=pgps.adjustments.MALA(num_steps=10))
    result = pgps.sample(density, pgps.Normal(start, 2.0), key=KEY, num_particles=500, method=method)
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert abs(result.log_evidence) < 4 * result.log_evidence_error
    y = density.constrain(result.particles)
    assert y["weights"].shape == (500, 3)
    weights = jax.nn.softmax(result.log_weights)
    means = [weights @ y["scale"], *(weights @ y["weights"]), weights @ y["effects"][0], weights @ y["effects"][1]]
    sds = [np.sqrt(3), *np.sqrt([5 / 252, 8 / 252, 9 / 252]), 1.0, np.sqrt(1 / 3)]
    truth = [3.0, 1 / 6, 1 / 3, 1 / 2, 5.0, 1.0]
    # Particles of one family are alike: their number counts, and not that of the particles.
    num = len(np.unique(np.asarray(result.families)))
    np.testing.assert_array_less(np.abs(np.array(means) - truth), 4 * np.array(sds) / np.sqrt(num))
    assert_close(density.unconstrain(y), result.particles, 1e-3)


def test_a_prior_becomes_a_law_to_start_from():
    def draw(key: Array) -> dict:
        keys = jax.random.split(key, 3)
        return {"rate": jax.random.gamma(keys[0], 2.0), "shares": jax.random.dirichlet(keys[1], jnp.ones(3))}

    def logdensity(y: dict) -> Array:
        return stats.gamma.logpdf(y["rate"], 2.0) + stats.dirichlet.logpdf(y["shares"], jnp.ones(3))

    bijectors = {"rate": Positive(), "shares": Simplex()}
    law = unconstrain_law((draw, logdensity), bijectors)
    x = jax.jit(jax.vmap(law.sample))(jax.random.split(KEY, 2000))
    y = unconstrain(logdensity, bijectors).constrain(x)
    assert_moments(y["rate"], 2.0, 2.0)
    assert_moments(y["shares"], np.full(3, 1 / 3), np.full(3, 1 / 18))
    first = jax.tree.map(lambda leaf: leaf[0], x)
    expected = logdensity(jax.tree.map(lambda leaf: leaf[0], y)) + first["rate"] + Simplex().log_det(first["shares"])
    assert_close(law.logdensity(first), expected, 1e-5)


def test_one_bijector_may_stand_for_a_branch():
    density = unconstrain(lambda y: jnp.sum(y["a"]["b"]) + y["a"]["c"] + y["d"], {"a": Positive(), "d": Identity()})
    x = {"a": {"b": jnp.array([0.1, 0.2]), "c": jnp.asarray(0.3)}, "d": jnp.asarray(-1.0)}
    assert_close(density(x), jnp.exp(jnp.array([0.1, 0.2, 0.3])).sum() - 1.0 + 0.6, 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interval(2.0, 1.0), "low must lie below high, both finite, got low=2.0 and high=1.0"),
        (lambda: Interval(0.0, jnp.inf), "bijectors.Positive has one bound alone"),
        (lambda: Interval(jnp.zeros(2), 1.0).forward(jnp.zeros(3)), r"parameter's shape \(3,\), got shapes \(2,\)"),
        (lambda: Interval(jnp.zeros((2, 3)), 1.0).log_det(jnp.zeros(3)), "must broadcast to the parameter's shape"),
        (lambda: Simplex().forward(jnp.zeros(())), r"a vector of at least 1 for bijectors.Simplex, got shape \(\)"),
        (lambda: Simplex().inverse(jnp.ones(1)), "y must be a vector of at least 2 for bijectors.Simplex"),
        (lambda: Ordered().log_det(jnp.zeros(())), "for bijectors.Ordered"),
        (lambda: unconstrain(lambda y: y["a"], {"a": Positive()})({"b": jnp.zeros(())}), "have the particle's str"),
    ],
)  # fmt: skip
def test_misuse_is_named(make: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_what_is_no_bijector_is_refused():
    for bijectors in ({"a": Positive}, {"a": None}, {}, "positive"):
        with pytest.raises(TypeError, match="bijectors must be one of pgps.bijectors"):
            unconstrain(lambda y: y["a"], bijectors)
    with pytest.raises(TypeError, match="logdensity_fn must be a function"):
        unconstrain(3.0, Positive())
