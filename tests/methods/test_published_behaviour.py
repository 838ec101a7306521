"""The paper's experiments, a seed or two each, against what the published code gives (0.24, 0.47; 0.60 to 0.66).

More seeds, with standard errors, are those of `pgps reproduce fig1` and `fig3-mode`: see docs/reproduction.md.
"""

import jax
import numpy as np
import pytest

import pgps

OPTIMISED = True
SEEDS = range(2)
# The published settings stop training short of its threshold at many steps, and say so here.
pytestmark = pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")


@pytest.mark.parametrize(
    ("alpha", "beta", "low", "high"), [(0.0, 1.0, 0.15, 0.35), (1.0, 0.8, 0.42, 0.51)], ids=["A", "B"]
)
def test_mode_discovery(alpha, beta, low, high):
    """Figure 3 (a): without shrinkage half of the right mode is found, with it nearly all (truth: 0.4993).

    The share of 2,000 particles has an error of 0.011 at most: the published values, give or take 3, are within bounds.
    """
    target, initial = pgps.targets.mode_discovery()
    method = pgps.paper(alpha, beta, psi=0.05)
    result = pgps.sample(target, initial, key=jax.random.key(0), num_particles=2000, method=method)
    assert result.status == pgps.Status.COMPLETED
    assert low < np.mean(result.particles > 5) < high


def test_both_modes_of_the_illustrative_example():
    """Figure 1: both modes are found, with the left one at 0.64 on average, as with the published code (0.60-0.66)."""
    target, initial = pgps.targets.two_modes()
    method = pgps.paper(
        beta=0.1,
        psi=0.05,
        learning_rate=1e-1,
        threshold=0.0,
        langevin_steps=10,
        langevin_step_size=1e-3,
    )
    shares = []
    for seed in SEEDS:
        result = pgps.sample(target, initial, key=jax.random.key(seed), num_particles=200, method=method)
        shares.append(float(np.mean(target.nearest_mode(result.particles) == 0)))
    # One run's share has a standard deviation of 0.03 (20 seeds): three of them, and 3 / sqrt(2) for the mean.
    assert all(0.35 <= share <= 0.64 + 0.09 for share in shares), shares
    assert 0.35 <= np.mean(shares) <= 0.64 + 0.06, shares
