"""The choice of a path: by rule on made-up pilots, and by pilot runs on targets that need one or the other end."""

import jax
import jax.numpy as jnp
import pytest

import pgps
from pgps import fields, trainers, tuning
from pgps.targets import nine_gaussians
from pgps.tuning import Pilot

# Without a field the program is small, and the paths differ all the same.
PLAIN = pgps.exact(field=fields.Zero(), trainer=trainers.NoTraining())
KEY = jax.random.key(0)


def test_a_path_that_lost_mass_is_out_however_cheap():
    found, lost = Pilot(1.0, 0.3, 0.0, 0.1, 1000), Pilot(0.0, 1.0, -0.5, 0.1, 10)
    assert tuning.choose([lost, found]) == found


def test_of_equal_evidences_the_cheaper_path_is_taken():
    dear, cheap = Pilot(1.0, 0.3, 0.0, 0.2, 1000), Pilot(0.0, 1.0, -0.3, 0.1, 1000)
    assert tuning.choose([dear, cheap]) == cheap
    assert cheap.price == pytest.approx(10.0)


def test_pilots_choose_by_the_target():
    """Nine modes of which the initial law reaches one or two need shrinkage; a narrow posterior does not."""
    chosen = tuning.tune_path(*nine_gaussians(), key=KEY, method=PLAIN, candidates=[(1.0, 0.3), (0.0, 1.0)])
    assert (chosen.path.alpha, chosen.path.beta) == (1.0, 0.3)
    assert [(pilot.alpha, pilot.beta) for pilot in chosen.pilots] == [(1.0, 0.3), (0.0, 1.0)]
    assert all(pilot.gradients > 400 for pilot in chosen.pilots)

    def posterior(x):
        return -10.0 * jnp.sum((x - 0.5) ** 2)

    law = pgps.Normal(shape=(2,))
    # By two pilots, whose errors are uncertain, one key in ten takes the other path.
    chosen = tuning.tune_path(posterior, law, key=KEY, num_runs=8, method=PLAIN, candidates=[(1.0, 0.3), (0.0, 1.0)])
    assert (chosen.path.alpha, chosen.path.beta) == (0.0, 1.0)


def test_where_no_pilot_completes_the_first_path_is_taken():
    method = pgps.exact(field=fields.Zero(), trainer=trainers.NoTraining(), max_steps=1)
    with pytest.warns(pgps.PGPSWarning, match="no pilot run completed"):
        chosen = tuning.tune_path(
            lambda x: -50.0 * jnp.sum((x - 3) ** 2), pgps.Normal(shape=(2,)), key=KEY, num_particles=20, method=method
        )
    assert (chosen.path.alpha, chosen.path.beta, chosen.pilots) == (1.0, 0.3, ())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"method": pgps.paper()}, ValueError, "method must have weights"),
        ({"method": pgps.methods.Langevin()}, TypeError, "method must be one of pgps.exact"),
        ({"candidates": []}, ValueError, "candidates must hold at least one pair"),
        ({"candidates": [(2.0, 1.0)]}, ValueError, "alpha must lie in"),
        ({"num_runs": 0}, ValueError, "num_runs must be at least 1"),
    ],
)
def test_misuse(settings, error, message):
    with pytest.raises(error, match=message):
        tuning.tune_path(lambda x: -jnp.sum(x**2), pgps.Normal(shape=(2,)), key=KEY, **settings)
