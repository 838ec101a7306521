"""Targets whose truth is known: log-density, exact sampler, mode masses."""

from pgps.targets.mixtures import GaussianMixture, mode_discovery, two_modes

__all__ = ["GaussianMixture", "mode_discovery", "two_modes"]
