"""Scouting: maxima of a density, a second opinion on a sample, and a law to start from that covers them."""

from pgps.scouting.law import Scouted, scouted
from pgps.scouting.maxima import Maxima
from pgps.scouting.opinion import Around, Scouting, differences

__all__ = ["Around", "Maxima", "Scouted", "Scouting", "differences", "scouted"]
