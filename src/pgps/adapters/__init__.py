"""Adapters: models of NumPyro, PyMC and Stan, BlackJAX's algorithms, and results for ArviZ.

Importing this imports none of them: each is loaded where it is used, and named where it is missing.
"""

from pgps.adapters import datatree

__all__ = ["datatree"]
