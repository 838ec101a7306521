"""NumPyro's models: log-densities, priors and constraints against NumPyro's own, and the posterior against NUTS."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest

import pgps
from helpers import assert_close, assert_moments
from pgps.adapters import fitted_normal, starting_law
from pgps.adapters.numpyro import NumPyroModel

numpyro: Any = pytest.importorskip("numpyro")
dist: Any = pytest.importorskip("numpyro.distributions")
infer: Any = pytest.importorskip("numpyro.infer")


# pyright: reportArgumentType=false, reportCallIssue=false

KEY = jax.random.key(5)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def centred(errors: np.ndarray, effects: np.ndarray | None = None) -> None:
    """Eight schools."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(errors)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effects", dist.Normal(theta, errors), obs=effects)


def non_centred(errors: np.ndarray, effects: np.ndarray | None = None) -> None:
    """Eight schools, with effects in units of their spread."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(errors)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("effects", dist.Normal(theta, errors), obs=effects)


def constraints(y: np.ndarray) -> None:
    """Supports of all kinds, one of which depends on another variable."""
    low = numpyro.sample("low", dist.Uniform(-2, 1))
    value = numpyro.sample("value", dist.Uniform(low, 4.0))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    numpyro.factor("penalty", -0.1 * value)
    numpyro.sample("y", dist.Normal(value + shares @ jnp.arange(3.0), rate), obs=y)


def improper(y: np.ndarray) -> None:
    """A flat prior of the mean."""
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


Y = np.random.default_rng(1).normal(3.0, 2.0, 20)
MODELS: dict[str, Callable[[], NumPyroModel]] = {
    "centred": lambda: NumPyroModel(centred, ERRORS, effects=EFFECTS),
    "non-centred": lambda: NumPyroModel(non_centred, ERRORS, EFFECTS),
    "constraints": lambda: NumPyroModel(constraints, Y),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_density_is_the_joint_density_with_jacobians(name: str):
    model = MODELS[name]()
    function, args = {"centred": (centred, (ERRORS, EFFECTS)), "non-centred": (non_centred, (ERRORS, EFFECTS))}.get(
        name, (constraints, (Y,))
    )
    particles = jax.jit(jax.vmap(model.prior().sample))(jax.random.split(KEY, 3))
    assert jax.tree.map(lambda x: x.shape[1:], particles) == jax.tree.map(jnp.shape, model.template)
    joint = lambda x: -infer.util.potential_energy(numpyro.handlers.seed(function, 0), args, {}, x)  # noqa: E731
    found, expected = jax.jit(jax.vmap(lambda x: (model(x), joint(x))))(particles)
    assert_close(found, expected, 1e-6)


def test_joint_and_prior_are_those_of_the_formulas():
    model = MODELS["centred"]()
    particle = model.prior().sample(KEY)
    mu, tau, theta = particle["mu"], jnp.exp(particle["tau"]), particle["theta"]
    # ln tau is the coordinate, so its own value is the Jacobian's term.
    log_prior = (
        stats.norm.logpdf(mu, 0, 5)
        + jnp.log(2.0)
        + stats.cauchy.logpdf(tau, 0, 5)
        + particle["tau"]
        + jnp.sum(stats.norm.logpdf(theta, mu, tau))
    )
    assert_close(model.prior().logdensity(particle), log_prior, 1e-5)
    assert_close(model(particle), log_prior + jnp.sum(stats.norm.logpdf(EFFECTS, theta, ERRORS)), 1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_constraints_there_and_back(name: str):
    model = MODELS[name]()
    particles = jax.jit(jax.vmap(model.prior().sample))(jax.random.split(KEY, 50))
    variables = model.constrain(particles)
    latent = {name: variables[name] for name in particles}
    back = jax.jit(jax.vmap(model.unconstrain))(latent)
    assert_close(back, particles, 2e-3)
    if name == "non-centred":
        expected = variables["mu"][:, None] + variables["tau"][:, None] * variables["z"]
        assert_close(variables["theta"], expected, 1e-5)
    if name == "constraints":
        assert np.all((variables["value"] > variables["low"]) & (variables["value"] < 4))
        np.testing.assert_allclose(variables["shares"].sum(axis=1), 1, rtol=1e-5)


def test_the_prior_is_drawn_from_and_normalised():
    model = MODELS["constraints"]()
    prior = model.prior()
    particles = jax.jit(jax.vmap(prior.sample))(jax.random.split(KEY, 4000))
    assert_moments(model.constrain(particles)["rate"], 4.0, 8.0)
    # E q / p = 1 over draws of p, for any q: here a Gaussian of half the draws' spread, so that ratios are bounded.
    mean, sd = (jax.tree.map(lambda x, f=f: f(x, axis=0), particles) for f in (jnp.mean, jnp.std))
    narrow = pgps.Normal(mean, jax.tree.map(lambda s: s / 2, sd))
    log_ratio = jax.jit(jax.vmap(lambda x: narrow.logdensity(x) - prior.logdensity(x)))(particles)
    ratio = np.exp(np.asarray(log_ratio, float))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


def test_without_a_proper_prior_a_fit_is_the_start():
    model = NumPyroModel(improper, Y)
    assert not model.has_prior()
    law = starting_law(model, KEY)
    assert isinstance(law, pgps.Normal)
    # The fit's mean is the posterior's, nearly, and its scale is twice as wide: sd / sqrt(n) is the posterior's.
    error = Y.std() / np.sqrt(len(Y))
    assert abs(law.loc["mu"] - Y.mean()) < error
    assert 1.2 * error < law.scale["mu"] < 3.5 * error
    with pytest.raises(ValueError, match=r"initial cannot be the prior of improper: that of 'mu' \(ImproperUniform\)"):
        model.prior()


def test_a_scaled_prior_is_not_drawn_from():
    def tempered() -> None:
        with numpyro.handlers.scale(scale=0.5):
            numpyro.sample("x", dist.Normal(0, 1))

    assert not NumPyroModel(tempered).has_prior()


def test_a_fit_that_diverges_is_named():
    with pytest.raises(ValueError, match="initial is needed here"):
        fitted_normal(lambda x: jnp.sum(1e38 * x**2), jnp.ones(2) * 1e10, KEY)


def test_eight_schools_agree_with_nuts():
    method = pgps.methods.TemperedSMC(moves=pgps.adjustments.HMC(num_leapfrog=4, num_steps=3))
    result = pgps.adapters.numpyro.sample(
        non_centred, ERRORS, effects=EFFECTS, key=KEY, num_particles=500, method=method
    )
    assert set(result.particles) == {"mu", "tau", "z", "theta"}
    assert result.log_evidence is not None
    nuts = infer.MCMC(infer.NUTS(non_centred), num_warmup=300, num_samples=1000, progress_bar=False)
    nuts.run(jax.random.key(6), ERRORS, effects=EFFECTS)
    weights = np.asarray(jax.nn.softmax(result.log_weights))
    num = len(np.unique(np.asarray(result.families)))
    for name in ("mu", "theta"):
        draws = np.asarray(nuts.get_samples(group_by_chain=True)[name])
        ess = numpyro.diagnostics.effective_sample_size(draws)
        error = draws.std(axis=(0, 1)) * np.sqrt(1 / ess + 1 / num)
        gap = np.abs(weights @ np.asarray(result.particles[name]) - draws.mean(axis=(0, 1)))
        np.testing.assert_array_less(gap, 4 * error)
    assert set(result.to_datatree()["posterior"].data_vars) == set(result.particles)


def no_latent(y: np.ndarray) -> None:
    numpyro.sample("y", dist.Normal(0, 1), obs=y)


def discrete(y: np.ndarray) -> None:
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(z, 1), obs=y)


@pytest.mark.parametrize(
    ("model", "arguments", "error", "message"),
    [
        (no_latent, (Y,), ValueError, "no_latent must have a latent variable, but all its sample sites are observed"),
        (len, (Y,), ValueError, "model len must have a latent variable, but it calls numpyro.sample nowhere"),
        (discrete, (Y,), ValueError, r"'z' \(Bernoulli\w*\) is discrete; sum it out"),
        (
            centred,
            (),
            TypeError,
            r"model centred\(errors, effects\) does not fit the data \(missing a required argument: 'errors'\)",
        ),
        ("centred", (), TypeError, "model must be a function with NumPyro's primitives, got 'centred'"),
    ],
)
def test_misuse_is_named(model: Any, arguments: tuple, error: type[Exception], message: str):
    with pytest.raises(error, match=message) as caught:
        pgps.adapters.numpyro.sample(model, *arguments, key=KEY)
    assert "\n" not in str(caught.value)
