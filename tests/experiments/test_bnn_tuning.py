"""How the corrected tables choose rates and paths: by parts of the training rows that are held out."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pgps.experiments import bnn_cells
from pgps.experiments.bnn_cells import Grid, Setting, _fold, _tune
from pgps.experiments.classify import Sizes
from pgps.result import Status
from pgps.targets import Dataset

ROWS = 42
TRAIN = Dataset("rows", np.random.default_rng(0).normal(3.0, 2.0, (ROWS, 2)), np.arange(ROWS), ROWS)
GRID = Grid(alphas=(0.0, 0.5), betas=(0.4, 1.0), sizes=Sizes(80), path_sizes=Sizes(40), num_folds=4)

Judge = Callable[[dict[str, float], int], float]


def tuned(
    monkeypatch: pytest.MonkeyPatch, method: str, judge: Judge
) -> tuple[dict[str, float], list[int], list[Sizes]]:
    """What is chosen if `judge(chosen, fold)` is the loss of each pilot, and the folds and lengths of the pilots."""
    lengths, folds, held_out = [], [], {_fold(TRAIN, 0, fold, 4)[1].labels[0]: fold for fold in range(4)}

    def method_of(_setting: Setting, _rows: int, _num: int, sizes: Sizes, chosen: dict[str, float]) -> dict[str, float]:
        lengths.append(sizes)
        return chosen

    def run(posterior: Any, chosen: dict[str, float], *_: Any) -> Any:
        failed = judge(chosen, 0) == np.inf
        return SimpleNamespace(chosen=chosen, status=Status.NONFINITE_DENSITY if failed else Status.COMPLETED)

    def loss(chosen: dict[str, float], labels: np.ndarray) -> float:
        folds.append(held_out[labels[0]])
        return judge(chosen, folds[-1])

    posterior = SimpleNamespace(predict=lambda result, features: SimpleNamespace(mean=result.chosen))
    monkeypatch.setattr(bnn_cells, "_posterior", lambda *_: posterior)
    monkeypatch.setattr(bnn_cells, "_method", method_of)
    monkeypatch.setattr(bnn_cells, "_sample", run)
    monkeypatch.setattr(bnn_cells, "negative_log_likelihood", loss)
    setting = Setting(lambda _: (TRAIN, TRAIN), method, 10, 1.0, Sizes(), GRID, 0.1)
    return _tune(setting, TRAIN, 0), folds, lengths


def test_folds_hold_out_each_part_once():
    held = []
    for fold in range(4):
        fitted, held_out = _fold(TRAIN, 0, fold, 4)
        assert (len(fitted.labels), len(held_out.labels)) == (32, 10)
        assert sorted([*fitted.labels, *held_out.labels]) == list(range(ROWS))
        # Standardised by what is fitted alone.
        np.testing.assert_allclose([fitted.features.mean(0), fitted.features.std(0)], [[0, 0], [1, 1]], atol=1e-5)
        held += [*held_out.labels]
    assert len(set(held)) == 40
    assert not np.array_equal(_fold(TRAIN, 1, 0, 4)[1].labels, _fold(TRAIN, 0, 0, 4)[1].labels)


@pytest.mark.parametrize(("method", "path"), [("pgps", {"alpha": 0.5, "beta": 0.4}), ("svgd", {})])
def test_rates_are_judged_on_all_folds_and_paths_on_one(monkeypatch: pytest.MonkeyPatch, method: str, path: dict):
    def judge(chosen: dict[str, float], fold: int) -> float:
        """The least rate is the best on the first fold alone."""
        off = sum(abs(chosen[name] - value) for name, value in path.items())
        return off + {0.05: 0.0 if fold == 0 else 9.0, 0.2: 1.0, 0.8: 2.0}[chosen["rate"]]

    chosen, folds, lengths = tuned(monkeypatch, method, judge)
    assert chosen == {"rate": 0.2, **path}
    assert folds == [0, 1, 2, 3] * 3 + [0] * (4 if path else 0)
    assert lengths == [GRID.sizes] * 12 + [GRID.path_sizes] * (4 if path else 0)


def test_a_rate_that_fails_is_not_chosen(monkeypatch: pytest.MonkeyPatch):
    def judge(chosen: dict[str, float], fold: int) -> float:
        return np.inf if chosen["rate"] > 0.5 else -chosen["rate"]

    assert tuned(monkeypatch, "svgd", judge)[0] == {"rate": 0.2}
