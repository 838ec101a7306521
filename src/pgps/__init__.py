"""pgps: path-guided particle-based sampling of hard, multimodal densities."""

from pgps import (
    adapters,
    adjustments,
    bijectors,
    fields,
    methods,
    metrics,
    paths,
    scouting,
    steppers,
    targets,
    trainers,
    tuning,
    weights,
)
from pgps._version import __version__
from pgps.checkpoint import Checkpoint
from pgps.initial import Normal, Uniform
from pgps.recipes import exact, paper, training_free
from pgps.result import PGPSWarning, Result, Status, load
from pgps.sample import sample, sample_many
from pgps.scouting import scouted

__all__ = [
    "Checkpoint",
    "Normal",
    "PGPSWarning",
    "Result",
    "Status",
    "Uniform",
    "__version__",
    "adapters",
    "adjustments",
    "bijectors",
    "exact",
    "fields",
    "load",
    "methods",
    "metrics",
    "paper",
    "paths",
    "sample",
    "sample_many",
    "scouted",
    "scouting",
    "steppers",
    "targets",
    "trainers",
    "training_free",
    "tuning",
    "weights",
]
