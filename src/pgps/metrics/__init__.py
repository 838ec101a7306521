"""How good a sample is: moments, shares and search of modes, distances, the Stein discrepancy; and predictions, too."""

from pgps.metrics.base import normalised_weights
from pgps.metrics.calibration import (
    Reliability,
    accuracy,
    brier_score,
    calibration_error,
    classwise_calibration_error,
    disagreement,
    negative_log_likelihood,
    predictive_entropy,
    reliability,
)
from pgps.metrics.clusters import Modes, find_modes
from pgps.metrics.distances import mmd_squared, wasserstein_1, wasserstein_2
from pgps.metrics.modes import ModeTable, Share, mode_table, score_1, score_2, share, weight_mismatch
from pgps.metrics.moments import Moments, moments
from pgps.metrics.stein import kernel_stein_discrepancy, target_scores

__all__ = [
    "ModeTable",
    "Modes",
    "Moments",
    "Reliability",
    "Share",
    "accuracy",
    "brier_score",
    "calibration_error",
    "classwise_calibration_error",
    "disagreement",
    "find_modes",
    "kernel_stein_discrepancy",
    "mmd_squared",
    "mode_table",
    "moments",
    "negative_log_likelihood",
    "normalised_weights",
    "predictive_entropy",
    "reliability",
    "score_1",
    "score_2",
    "share",
    "target_scores",
    "wasserstein_1",
    "wasserstein_2",
    "weight_mismatch",
]
