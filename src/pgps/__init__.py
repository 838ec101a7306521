"""pgps: path-guided particle-based sampling of hard, multimodal densities."""

from pgps import (
    adapters,
    adjustments,
    bijectors,
    fields,
    methods,
    metrics,
    paths,
    steppers,
    targets,
    trainers,
    tuning,
    weights,
)
from pgps._version import __version__
from pgps.initial import Normal, Uniform
from pgps.recipes import exact, paper, training_free
from pgps.result import PGPSWarning, Result, Status, load
from pgps.sample import sample, sample_many

__all__ = [
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
    "steppers",
    "targets",
    "trainers",
    "training_free",
    "tuning",
    "weights",
]
