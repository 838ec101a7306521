"""The paper's experiments, one file each, and the runner that repeats them: `pgps reproduce`."""

from pgps.experiments.base import AbstractExperiment, Cell, Claim, Findings, Record
from pgps.experiments.figure1 import Figure1
from pgps.experiments.figure2 import Figure2
from pgps.experiments.figure3 import SCORE_1, SCORE_2, Figure3, claims_mode, claims_sensitivity
from pgps.experiments.figure4 import Figure4
from pgps.experiments.figure5 import Figure5
from pgps.experiments.theory import Theory

EXPERIMENTS: dict[str, AbstractExperiment] = {
    "fig1": Figure1(),
    "fig2": Figure2(),
    "fig3-mode": Figure3("Figure 3 (a, b): discovering a mode", SCORE_1, claims_mode),
    "fig3-sensitivity": Figure3("Figure 3 (c, d): a mode that is hardly there", SCORE_2, claims_sensitivity),
    "fig4": Figure4(),
    "fig5": Figure5(),
    "theory": Theory(),
}
"""By the name that the command line has for them."""

__all__ = ["EXPERIMENTS", "AbstractExperiment", "Cell", "Claim", "Findings", "Record"]
