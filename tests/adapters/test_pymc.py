"""PyMC's models: log-densities against PyMC's own, priors, constraints, and no change of JAX's precision."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from helpers import assert_close, assert_moments
from pgps.adapters.pymc import PyMCModel

pm: Any = pytest.importorskip("pymc")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

KEY = jax.random.key(9)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(centred: bool) -> Any:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=8)
        else:
            theta = pm.Deterministic("theta", mu + tau * pm.Normal("z", 0, 1, shape=8))
        pm.Normal("effects", theta, pm.Data("errors", ERRORS), observed=EFFECTS)
    return model


@pytest.mark.parametrize("centred", [True, False])
def test_the_density_is_pymcs_and_the_precision_is_left_alone(centred: bool):
    source = eight_schools(centred)
    model = PyMCModel(source)
    assert jnp.zeros(()).dtype == jnp.float32
    assert model.has_prior()
    particle = model.prior().sample(KEY)
    assert jax.tree.map(jnp.shape, particle) == jax.tree.map(jnp.shape, model.template)
    point = {name: np.asarray(value, float) for name, value in particle.items()}
    assert_close(model(particle), source.compile_logp()(point), 1e-5)
    assert_close(model.prior().logdensity(particle), source.compile_logp(vars=source.free_RVs)(point), 1e-5)


def test_draws_are_the_priors_and_variables_are_constrained():
    model = PyMCModel(eight_schools(False))
    particles = jax.jit(jax.vmap(model.prior().sample))(jax.random.split(KEY, 2000))
    variables = model.constrain(particles)
    assert set(variables) == {"mu", "tau", "z", "theta"}
    assert_moments(variables["mu"], 0.0, 25.0)
    assert_moments(variables["z"], np.zeros(8), np.ones(8))
    # Half of HalfCauchy(5) lies below 5.
    assert abs(np.mean(np.asarray(variables["tau"]) < 5) - 0.5) < 4 * 0.5 / np.sqrt(2000)
    assert_close(variables["theta"], variables["mu"][:, None] + variables["tau"][:, None] * variables["z"], 1e-4)


def test_eight_schools_agree_with_nuts():
    numpyro_schools: Any = pytest.importorskip("eight_schools")
    common: Any = importlib.import_module("common")
    reference = common.chain_moments(numpyro_schools.nuts(numpyro_schools.non_centred, jax.random.key(3), 500))
    method = pgps.methods.TemperedSMC(moves=pgps.adjustments.HMC(num_leapfrog=4, num_steps=3))
    results = []
    for centred in (False, True):
        result = pgps.adapters.pymc.sample(eight_schools(centred), key=KEY, num_particles=600, method=method)
        columns = numpyro_schools.columns(result.particles)
        found = pgps.metrics.moments(columns, result.log_weights, result.families)
        np.testing.assert_array_less(np.abs(common.z_scores(found, reference)), 4.0)
        assert np.all(found.mean_error < 1.0)
        results.append((result.log_evidence, result.log_evidence_error))
    (a, a_error), (b, b_error) = results
    assert abs(a - b) < 4 * np.hypot(a_error, b_error)


def test_misuse_is_named():
    with pm.Model() as flat:
        pm.Normal("y", pm.Flat("mu"), 1.0, observed=EFFECTS)
    with pytest.raises(ValueError, match="initial cannot be the prior of this model: a variable is improper"):
        PyMCModel(flat).prior()
    with pm.Model() as discrete:
        pm.Normal("y", pm.Bernoulli("z", 0.5), 1.0, observed=EFFECTS)
    with pytest.raises(ValueError, match="'z' is discrete; sum it out"):
        PyMCModel(discrete)
    with pm.Model() as nothing:
        pm.Normal("y", 0.0, 1.0, observed=EFFECTS)
    with pytest.raises(ValueError, match="model must have a free variable"):
        pgps.adapters.pymc.sample(nothing, key=KEY)
    with pytest.raises(TypeError, match="model must be a pymc.Model, got 3"):
        PyMCModel(3)
