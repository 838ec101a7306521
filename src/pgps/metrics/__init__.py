"""How good a weighted sample is: shares of modes, distances to a reference sample, and the Stein discrepancy."""

from pgps.metrics.base import normalised_weights
from pgps.metrics.distances import mmd_squared, wasserstein_1, wasserstein_2
from pgps.metrics.modes import ModeTable, Share, mode_table, score_1, score_2, share, weight_mismatch
from pgps.metrics.stein import kernel_stein_discrepancy, target_scores

__all__ = [
    "ModeTable",
    "Share",
    "kernel_stein_discrepancy",
    "mmd_squared",
    "mode_table",
    "normalised_weights",
    "score_1",
    "score_2",
    "share",
    "target_scores",
    "wasserstein_1",
    "wasserstein_2",
    "weight_mismatch",
]
