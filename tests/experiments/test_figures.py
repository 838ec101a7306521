"""Every figure's smoke preset runs from the command line, and its protocol is the published one."""

import json
from dataclasses import replace

import numpy as np
import pytest

from pgps import adjustments
from pgps.cli import main
from pgps.experiments import EXPERIMENTS, Record, figure3, figure4
from pgps.experiments.figure1 import Figure1
from pgps.experiments.page import markdown_page


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3-mode", "fig4", "fig5"])
def test_smoke(name: str, tmp_path, capsys):
    assert main(["reproduce", name, "--preset", "smoke", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "report.html")
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(record["cells"]) == {cell.name for cell in EXPERIMENTS[name].cells("smoke")}
    for cell in record["cells"].values():
        for row in cell["rows"]:
            assert row.get("status", "COMPLETED") == "COMPLETED"
    assert record["claims"]
    page = (tmp_path / "out" / "page.md").read_text()
    assert all(claim["published"] in page for claim in record["claims"])


def test_workers_give_the_numbers_of_one_process(tmp_path):
    for folder, jobs in (("one", "1"), ("two", "2")):
        assert main(["reproduce", "fig2", "--out", str(tmp_path / folder), "--jobs", jobs, "--quiet"]) == 0
    one, two = (json.loads((tmp_path / folder / "result.json").read_text())["cells"] for folder in ("one", "two"))
    assert set(one) == set(two) == {"A", "B", "C"}
    for name in one:
        assert one[name]["rows"] == two[name]["rows"]


def test_figure_3_has_the_published_settings():
    cells = {cell.name: cell for cell in EXPERIMENTS["fig3-mode"].cells("paper")}
    assert {name for name in cells if name.startswith("pgps")} == {
        f"pgps-{letter}-psi{psi}" for letter in "ABCD" for psi in ("0.5", "0.1", "0.05", "0.01")
    }
    settings = cells["pgps-D-psi0.05"].settings
    method = settings["method"]
    assert settings["num_particles"] == 5000
    assert (method["path"]["alpha"], method["path"]["beta"], method["path"]["center"]) == (1.0, 0.8, 0.0)
    assert (method["trainer"]["learning_rate"], method["trainer"]["max_steps"]) == (1e-2, 1000)
    assert (method["stepper"]["psi"], method["stepper"]["max_dt"]) == (0.05, 0.02)
    assert (method["adjustment"]["num_steps"], method["adjustment"]["step_size"]) == (10, 1e-2)
    assert cells["pgps-A-psi0.05"].settings["method"]["adjustment"]["class"].endswith("NoAdjustment")
    assert cells["langevin"].settings["method"]["num_steps"] == 5000
    assert figure3.SCORE_1.truth == pytest.approx(0.4993, abs=5e-5)
    assert figure3.SCORE_2.truth == pytest.approx(0.0010, abs=5e-5)


def test_figure_4_has_the_published_settings():
    cells = {cell.name: cell.settings for cell in EXPERIMENTS["fig4"].cells("paper")}
    method = cells["pgps-D-psi0.1"]["method"]
    assert method["path"]["beta"] == 0.5
    assert method["field"]["width"] == 128
    assert (method["trainer"]["max_steps"], method["trainer"]["threshold"]) == (20_001, 0.1)
    assert (method["trainer"]["drop"]["below"], method["trainer"]["drop"]["learning_rate"]) == (100.0, 1e-2)
    langevin = adjustments.Langevin(1e-4, 100, 0.01, 1000)
    found = method["adjustment"]
    assert [found[name] for name in ("step_size", "num_steps", "every", "final_steps")] == [
        langevin.step_size,
        langevin.num_steps,
        langevin.every,
        langevin.final_steps,
    ]
    assert cells["svgd"]["num_particles"] == 500
    assert EXPERIMENTS["fig4"].seeds("paper") == tuple(range(10))
    weights = [np.asarray(figure4.problem(seed)[0].weights) for seed in range(2)]
    assert not np.allclose(weights[0], weights[1])
    np.testing.assert_allclose([w.sum() for w in weights], 1.0, rtol=1e-6)


def test_a_claim_that_does_not_hold_is_not_reproduced():
    """LD that finds both modes, and PGPS that finds one, turn Figure 1's claims around."""

    def record(left: float) -> Record:
        row = {"left": left, "right": 1 - left, "iterations": 10, "evaluations": 11, "training_steps": 0}
        particles = np.tile([[1.0, 0.0]], (4, 1))
        return Record([row, row], {"particles": particles})

    records = {"langevin-early": record(1.0), "langevin-late": record(0.5), "pgps": record(0.95)}
    findings = Figure1().findings("paper", records)
    assert [claim.verdict for claim in findings.claims] == ["not reproduced", "not reproduced"]
    assert findings.verdict == "not reproduced"
    good = Figure1().findings("paper", records | {"langevin-late": record(0.98), "pgps": record(0.55)})
    assert good.verdict == "reproduced"
    mixed = Figure1().findings("paper", records | {"langevin-late": record(0.98)})
    assert mixed.verdict == "partly"
    unknown = replace(good, claims=[])
    assert unknown.verdict == "open"
    page = markdown_page(
        "Table", unknown, {"command": "pgps reproduce table2", "preset": "paper", "seeds": [0], "seconds": 1}
    )
    assert "**Open: too little was run" in page
    assert "verdict" not in page
