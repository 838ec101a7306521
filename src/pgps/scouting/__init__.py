"""Scouting: maxima of a density, second opinions on a sample, and a law to start from that covers the maxima."""

from pgps.scouting.law import Scouted, covering, scouted
from pgps.scouting.maxima import Maxima
from pgps.scouting.opinion import Around, Scouting, accounts_for_evidence, differences
from pgps.scouting.rest import Rest, at_rest, unrest

__all__ = [
    "Around",
    "Maxima",
    "Rest",
    "Scouted",
    "Scouting",
    "accounts_for_evidence",
    "at_rest",
    "covering",
    "differences",
    "scouted",
    "unrest",
]
