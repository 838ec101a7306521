"""Adapters: models of NumPyro, PyMC and Stan, BlackJAX's algorithms, and results for ArviZ.

Importing this imports none of them: each is loaded where it is used, and named where it is missing.
"""

from pgps.adapters import blackjax, datatree, numpyro, pymc, stan
from pgps.adapters.base import AbstractModel, constrained, starting_law
from pgps.adapters.fit import fitted_normal

__all__ = [
    "AbstractModel",
    "blackjax",
    "constrained",
    "datatree",
    "fitted_normal",
    "numpyro",
    "pymc",
    "stan",
    "starting_law",
]
