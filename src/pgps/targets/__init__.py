"""Targets whose truth is known: log-density, log evidence, exact sampler, mode masses; and posteriors of real data."""

from pgps.targets.base import AbstractPosterior, AbstractTarget
from pgps.targets.bnn import BNN, Prediction, perceptron
from pgps.targets.cox import LogGaussianCox, log_gaussian_cox
from pgps.targets.datasets import Dataset, fill_missing, load_dataset, load_table, partition, split, standardise
from pgps.targets.funnel import Funnel, funnel
from pgps.targets.likelihoods import AbstractLikelihood, Bernoulli, Categorical, Gaussian
from pgps.targets.logistic import LogisticRegression, sonar
from pgps.targets.mixtures import (
    AbstractMixture,
    GaussianMixture,
    false_mode,
    forty_gaussians,
    mode_discovery,
    nine_gaussians,
    two_modes,
    weight_recovery,
)
from pgps.targets.student import StudentMixture, student_t_mixture
from pgps.targets.wells import ManyWell, many_well

__all__ = [
    "BNN",
    "AbstractLikelihood",
    "AbstractMixture",
    "AbstractPosterior",
    "AbstractTarget",
    "Bernoulli",
    "Categorical",
    "Dataset",
    "Funnel",
    "Gaussian",
    "GaussianMixture",
    "LogGaussianCox",
    "LogisticRegression",
    "ManyWell",
    "Prediction",
    "StudentMixture",
    "false_mode",
    "fill_missing",
    "forty_gaussians",
    "funnel",
    "load_dataset",
    "load_table",
    "log_gaussian_cox",
    "many_well",
    "mode_discovery",
    "nine_gaussians",
    "partition",
    "perceptron",
    "sonar",
    "split",
    "standardise",
    "student_t_mixture",
    "two_modes",
    "weight_recovery",
]
