"""What the tables of networks show: winners, equals, bold, and the scores and settings behind them."""

from typing import Any

import numpy as np
import pytest

from pgps import metrics
from pgps.experiments import Claim, Findings, Record
from pgps.experiments.bnn_cells import _released_scores
from pgps.experiments.bnn_tables import METHODS, at_least_equal, clear_winner, score_table
from pgps.experiments.classify import FOLLOW_A_PATH, Scale, Sizes, measure
from pgps.experiments.classify import METHODS as MAKERS
from pgps.experiments.page import html_page, markdown_page


def records(score: str = "accuracy", row: str = "sonar", **values: list[float]) -> dict[str, Record]:
    """A row's records; methods that are not given have 0.5, or worse than all where less is better."""
    plain = [0.5] * len(next(iter(values.values())))
    given = {method: values.get(method, plain) for method in METHODS}
    return {f"{row}-{method}": Record([{score: value} for value in runs]) for method, runs in given.items()}


@pytest.mark.parametrize(
    ("pgps", "svgd", "winner"),
    [
        # Ahead by 0.1, with a standard error of 0.006: the noise of the runs is shared.
        ([0.7, 0.9, 0.8], [0.61, 0.8, 0.69], "pgps"),
        # Ahead by 0.1, with a standard error of 0.1.
        ([0.7, 0.9, 0.8], [0.8, 0.7, 0.6], None),
        ([0.7, 0.9, 0.8], [0.7, 0.9, 0.8], None),
        ([0.6, 0.6, 0.6], [0.7, 0.8, 0.75], "svgd"),
    ],
)
def test_a_clear_winner(pgps: list[float], svgd: list[float], winner: str | None):
    found = records(pgps=pgps, svgd=svgd)
    assert clear_winner(found, "sonar", "accuracy", METHODS) == winner
    # A score of which less is better.
    turned_round: Any = {name: [-x for x in found[f"sonar-{name}"].values("accuracy")] for name in METHODS}
    turned = records("nll", **turned_round)
    assert clear_winner(turned, "sonar", "nll", METHODS) == winner


def test_one_run_has_no_winner():
    assert clear_winner(records(pgps=[0.9]), "sonar", "accuracy", METHODS) is None
    assert not at_least_equal(records(pgps=[0.9]), "sonar", "accuracy")


@pytest.mark.parametrize(
    ("pgps", "svgd", "equal"),
    [
        ([0.8, 0.8, 0.8], [0.8, 0.8, 0.8], True),
        # Behind by 0.01, with a standard error of 0.012; and of 0.006.
        ([0.80, 0.80, 0.80], [0.83, 0.81, 0.79 - 1e-6], True),
        ([0.80, 0.80, 0.80], [0.82, 0.81, 0.80], False),
        ([0.9, 0.8, 0.7], [0.6, 0.6, 0.6], True),
    ],
)
def test_at_least_equal(pgps: list[float], svgd: list[float], equal: bool):
    assert at_least_equal(records(pgps=pgps, svgd=svgd), "sonar", "accuracy") == equal
    turned = records("nll", pgps=[-x for x in pgps], svgd=[-x for x in svgd], sgld=[9.0] * 3, pfg=[9.0] * 3)
    assert at_least_equal(turned, "sonar", "nll") == equal


def test_a_table_has_means_deviations_and_what_was_published():
    found = records(pgps=[0.7, 0.9, 0.8], svgd=[0.61, 0.8, 0.69])
    table = score_table(found, ["sonar"], "accuracy", "accuracy", {"sonar": (0.7981, 0.79, 0.7, 0.6)})
    assert table.head == ("set", "PGPS", "SVGD", "SGLD", "PFG")
    assert table.rows[0][:3] == ("SONAR", "**0.800 ± 0.100** (0.798)", "0.700 ± 0.095 (0.790)")
    assert table.caption.startswith("Accuracy, mean and standard deviation over the runs, published means in brackets")
    plain = score_table(found, ["sonar"], "accuracy", "accuracy", methods=("svgd", "pgps"))
    assert plain.rows[0] == ("SONAR", "0.700 ± 0.095", "**0.800 ± 0.100**")
    assert score_table(records(pgps=[0.9]), ["sonar"], "accuracy", "accuracy").rows[0][1] == "0.900 ± nan"


def test_a_winner_is_bold_in_both_pages():
    from matplotlib.figure import Figure

    found = records(pgps=[0.7, 0.9, 0.8], svgd=[0.61, 0.8, 0.69])
    table = score_table(found, ["sonar"], "accuracy", "a < b", {"sonar": (0.8, 0.79, 0.7, 0.6)})
    claim = Claim("PGPS is <best>", "0.8", "reproduced")
    findings = Findings((claim,), (table,), Figure(), "Scores.")
    asked = {"command": "pgps reproduce table1", "preset": "paper", "seeds": [0, 1], "seconds": 3.0}
    record = asked | {"cells": {}, "versions": {"pgps": "0"}}
    page = markdown_page("Table 1", findings, record)
    assert "| SONAR | **0.800 ± 0.100** (0.800) | 0.700 ± 0.095 (0.790) |" in page
    html = html_page("Table 1", findings, record, b"picture")
    assert "<b>0.800 ± 0.100</b> (0.800)" in html
    assert "**0.800" not in html
    assert "PGPS is &lt;best&gt;" in html


def test_scores_of_the_released_code_have_the_likelihood_of_a_second_softmax():
    rng = np.random.default_rng(0)
    p, labels = rng.dirichlet(np.ones(3), 50), rng.integers(3, size=50)
    again = np.exp(p) / np.exp(p).sum(axis=1, keepdims=True)
    released, usual = _released_scores(p, labels), measure(p, labels)
    assert released["nll"] == pytest.approx(-np.mean(np.log(again[np.arange(50), labels])))
    assert usual["nll"] == pytest.approx(-np.mean(np.log(p[np.arange(50), labels])))
    assert {**released, "nll": 0} == {**usual, "nll": 0}
    assert usual["classwise_ece"] == metrics.classwise_calibration_error(p, labels)
    assert usual["ece"] == metrics.calibration_error(p, labels)


@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_scaled_by_the_rows(name: str):
    """The learning rate of the mean loss does not depend on how many rows there are."""
    path = {"alpha": 0.4, "beta": 0.6} if name in FOLLOW_A_PATH else {}
    method: Any = MAKERS[name](Scale(500, 20, 0.1), Sizes(400, 7, 30), **path)
    if name in FOLLOW_A_PATH:
        langevin = method.adjustment
        assert langevin.step_size == pytest.approx(0.1 / 500)
        assert (langevin.num_steps, langevin.final_steps) == (30, 100)
        assert (method.path.alpha, method.path.beta) == (0.4, 0.6)
    else:
        assert method.step_size == pytest.approx(0.1 * 20 / 2 / 500 if name == "svgd" else 0.1 / 500)
        assert method.num_steps == 400 + (20 if name == "sgld" else 0)
