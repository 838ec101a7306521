"""A run that has missed modes is made again, and what is left if that cannot be."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from pgps import adjustments, again, fields, targets
from pgps.reporting.recording import Recorder
from pgps.reporting.verdict import reasons
from pgps.run import Snapshot
from pgps.scouting import Scouting

# Half of the mass lies where the initial law never is.
HIDDEN = targets.GaussianMixture(jnp.full(2, 0.5), jnp.array([[0.0, 0.0], [25.0, 25.0]]), jnp.ones(2))
INITIAL = pgps.Normal(jnp.zeros(2), 1.0)
KEY = jax.random.key(3)
MESSAGE = "a second run, from a law that covers the maxima"


def method(*, repeat: bool = True) -> pgps.methods.PGPS:
    # With as many maxima as there are, and steps that all are taken, scouts take just what they might.
    scouting = Scouting(num_steps=12, most=2, again=repeat)
    return pgps.exact(field=fields.Affine(), moves=adjustments.MALA(precondition=True, mixing=0.4), scouting=scouting)


def run(*, repeat: bool = True, **options: Any) -> pgps.Result:
    return pgps.sample(HIDDEN, INITIAL, key=KEY, num_particles=400, method=method(repeat=repeat), **options)


@pytest.fixture(scope="module")
def alone() -> pgps.Result:
    """The first run, as it is."""
    with pytest.warns(pgps.PGPSWarning, match="modes are missing"):
        return run(repeat=False)


@pytest.fixture(scope="module")
def repeated() -> pgps.Result:
    """The same, made again."""
    return run()


def masses(result: pgps.Result) -> np.ndarray:
    return np.sort(result.modes().masses)


def test_a_mode_that_was_missed_is_found_by_the_second_run(alone: pgps.Result, repeated: pgps.Result):
    assert alone.log_evidence == pytest.approx(np.log(0.5), abs=0.05)
    assert repeated.warnings == ()
    assert repeated.log_evidence is not None
    assert repeated.log_evidence_error is not None
    assert abs(repeated.log_evidence) < 4 * repeated.log_evidence_error
    np.testing.assert_allclose(masses(repeated), 0.5, atol=0.15)


def test_both_runs_are_counted_and_told(alone: pgps.Result, repeated: pgps.Result, tmp_path: Path):
    assert repeated.num_evaluations.total > alone.num_evaluations.total + 400 * len(repeated.trace["t"])
    first = repeated.provenance["first_run"]
    assert first["log_evidence"] == alone.log_evidence
    assert first["warnings"] == list(alone.warnings)
    assert repeated.provenance["covered_maxima"] == 2
    assert "wrong masses; this one started from a law that covers 2 maxima" in repeated.summary()
    assert alone.second_start is None
    assert repeated.second_start in reasons(repeated)
    repeated.save(tmp_path / "kept")
    assert pgps.load(tmp_path / "kept").summary() == repeated.summary()


def test_fresh_particles_start_from_the_law_of_the_second_run(repeated: pgps.Result):
    fresh = repeated.draw(jax.random.key(5), 2000)
    assert fresh.log_evidence is not None
    assert fresh.log_evidence_error is not None
    assert abs(fresh.log_evidence) < 4 * fresh.log_evidence_error
    np.testing.assert_allclose(masses(fresh), 0.5, atol=0.1)


def test_several_runs_at_once_are_made_again_like_single_ones(repeated: pgps.Result):
    keys = [jax.random.key(4), KEY]
    other, result = pgps.sample_many(HIDDEN, INITIAL, keys=keys, num_particles=400, method=method())
    assert other.second_start is not None
    assert result.log_evidence == repeated.log_evidence
    np.testing.assert_array_equal(result.particles, repeated.particles)


def test_an_interrupted_second_run_is_the_last_one(monkeypatch: pytest.MonkeyPatch):
    begun = []

    def interrupt(*_: Any) -> None:
        begun.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(again, "drive", interrupt)
    with pytest.warns(pgps.PGPSWarning, match="modes are missing"):
        results = pgps.sample_many(HIDDEN, INITIAL, keys=[KEY] * 3, num_particles=400, method=method())
    assert begun == [1]
    assert results[0].warnings[-1] == f"{MESSAGE}, was interrupted"
    assert results[1].warnings == results[0].warnings[:-1]


@pytest.mark.parametrize("more", [0, 1000])
def test_limits_hold_for_both_runs_together(alone: pgps.Result, more: int):
    limit = alone.num_evaluations.total + more
    with pytest.warns(pgps.PGPSWarning, match="modes are missing"):
        result = run(max_evaluations=limit)
    assert result.log_evidence == alone.log_evidence
    if more == 0:
        assert result.num_evaluations == alone.num_evaluations
        assert result.warnings == alone.warnings
    else:
        # A step that has begun is finished.
        assert limit <= result.num_evaluations.total < limit + 400 * 20
        assert result.warnings[-1] == f"{MESSAGE}, was cut short (evaluation_limit)"


def test_a_second_run_that_fails_costs_nothing(alone: pgps.Result, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(again, "drive", fail)
    with pytest.warns(pgps.PGPSWarning, match=f"{MESSAGE}, ended by an error .RESOURCE_EXHAUSTED: out of memory"):
        result = run()
    assert result.log_evidence == alone.log_evidence
    np.testing.assert_array_equal(result.particles, alone.particles)


def test_a_callbacks_own_error_passes_through():
    seen = []

    def complain(snapshot: Snapshot) -> None:
        seen.append(snapshot.num_steps)
        if seen.count(0) == 2:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(callback=complain)


def test_a_checkpoint_of_the_first_run_leads_to_the_same_second_one(repeated: pgps.Result, tmp_path: Path):
    checkpoint = pgps.Checkpoint(tmp_path / "run.checkpoint")
    np.testing.assert_array_equal(run(checkpoint=checkpoint).particles, repeated.particles)
    assert (tmp_path / "run.checkpoint.again").is_file()
    result = run(checkpoint=checkpoint)
    np.testing.assert_array_equal(result.particles, repeated.particles)
    assert result.provenance["resumed_at"] == [1.0]


def test_frames_are_those_of_the_second_run(repeated: pgps.Result):
    recorder = Recorder()
    run(callback=recorder)
    recording = recorder.recording()
    assert recording is not None
    assert np.all(np.diff(recording.step) > 0)
    assert recording.step[-1] == len(repeated.trace["t"])
    assert np.max(recording.positions[0]) > 20


def test_frames_are_those_of_the_first_run_if_the_second_is_cut_short(alone: pgps.Result):
    recorder = Recorder()
    with pytest.warns(pgps.PGPSWarning, match="was cut short"):
        result = run(callback=recorder, max_evaluations=alone.num_evaluations.total + 1000)
    recording = recorder.recording()
    assert recording is not None
    assert recording.t[-1] == result.t == 1
    assert recording.step[-1] == len(alone.trace["t"])


def test_nothing_is_made_again_that_missed_nothing():
    easy = dataclasses.replace(HIDDEN, means=jnp.array([[0.0, 0.0], [3.0, 3.0]]))
    result = pgps.sample(easy, pgps.Normal(jnp.zeros(2), 3.0), key=KEY, num_particles=400, method=method())
    assert "first_run" not in result.provenance


def test_a_run_whose_evidence_is_uncertain_is_not_made_again(monkeypatch: pytest.MonkeyPatch):
    """What a second run would be sure of may be the least of the modes."""
    monkeypatch.setattr("pgps.outcome._LARGEST_ERROR", -1.0)
    with pytest.warns(pgps.PGPSWarning, match="modes are missing"):
        result = run()
    assert result.second_start is None
    assert any("the log evidence is uncertain" in doubt for doubt in result.warnings)


@pytest.mark.parametrize(("more", "doubted"), [(0.5, True), (-0.5, False), (0.0, False)])
def test_a_second_run_with_less_evidence_is_doubted(repeated: pgps.Result, more: float, doubted: bool):
    assert repeated.log_evidence is not None
    assert repeated.log_evidence_error is not None
    assert repeated.log_evidence_error < 0.1
    first = dataclasses.replace(repeated, log_evidence=repeated.log_evidence + more)
    assert (again._lost(first, repeated) is not None) == doubted
