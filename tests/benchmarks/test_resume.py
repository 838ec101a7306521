"""Runs that are killed: three times, at random moments, and the same bits at the end."""

import json

from pgps.benchmarks import resume


def test_three_kills_change_no_bit(tmp_path):
    record = resume.run(tmp_path / "out", quiet=True, preset=resume.PRESETS["smoke"])
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == record
    fate = record["methods"]["smc"]
    assert len(fate["kills"]) == 3
    assert fate["unreadable"] == 0
    assert fate["lives"] >= 1
    assert fate["differing"] == []
    assert "3 kills" in resume.format_table(record)
    # Something was done when it was killed, and something left to do.
    assert any(0 < share < 1 for share in fate["kills"])
