"""The paper's experiments, one file each, and the runner that repeats them: `pgps reproduce`."""

from pgps.experiments.base import AbstractExperiment, Cell, Claim, Findings, Record
from pgps.experiments.figure1 import Figure1
from pgps.experiments.figure2 import Figure2
from pgps.experiments.figure3 import SCORE_1, SCORE_2, Figure3, claims_mode, claims_sensitivity
from pgps.experiments.figure4 import Figure4
from pgps.experiments.figure5 import Figure5
from pgps.experiments.mnist import MNIST
from pgps.experiments.theory import Theory
from pgps.experiments.uci import UCI

EXPERIMENTS: dict[str, AbstractExperiment] = {
    "fig1": Figure1(),
    "fig2": Figure2(),
    "fig3-mode": Figure3("Figure 3 (a, b): discovering a mode", SCORE_1, claims_mode),
    "fig3-sensitivity": Figure3("Figure 3 (c, d): a mode that is hardly there", SCORE_2, claims_sensitivity),
    "fig4": Figure4(),
    "fig5": Figure5(),
    "theory": Theory(),
    "table1-published": UCI("published"),
    "table1-corrected": UCI("corrected"),
    "table2-published": MNIST(2, "published"),
    "table2-corrected": MNIST(2, "corrected"),
    "table3-published": MNIST(3, "published"),
    "table3-corrected": MNIST(3, "corrected"),
}
"""By name; those of tables end in their protocol, which is an option on the command line."""

PROTOCOLS = ("corrected", "published")
# Tables 1 and 4 show scores of the same runs.
_SAME_RUNS = {"table4": "table1"}


def find(item: str | None, protocol: str) -> list[str]:
    """The experiments that an item names: a figure, a table in one of its protocols, or all figures."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}; choose one")
    figures = [name for name in EXPERIMENTS if not name.startswith("table")]
    if item == "all":
        return figures
    name = _SAME_RUNS.get(item or "", item)
    for known in (name, f"{name}-{protocol}"):
        if known in EXPERIMENTS:
            return [known]
    got = "none" if item is None else repr(item)
    tables = ", ".join(f"table{number}" for number in (1, 2, 3, 4))
    raise ValueError(f"item must be one of {', '.join(figures)}, {tables} or all, got {got}; see reproduce --list")


__all__ = ["EXPERIMENTS", "PROTOCOLS", "AbstractExperiment", "Cell", "Claim", "Findings", "Record", "find"]
