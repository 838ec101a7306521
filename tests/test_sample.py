"""The entry point: what it returns, what it refuses, how it fails, and that it compiles once."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

import pgps
from helpers import counting
from pgps.result import Status

KEY = jax.random.key(0)
STANDARD = pgps.Normal(0.0, 1.0, shape=(2,))


def gaussian(x):
    return -0.5 * jnp.sum((x - 1.0) ** 2)


def quick(**changes):
    """A paper recipe that takes a second: few training steps, a threshold that they reach."""
    settings = {"max_training_steps": 20, "threshold": 10.0, "width": 8, "max_dt": 0.2, "psi": 1.0}
    return pgps.paper(**{**settings, **changes})


class CompilationCounter:
    """Counts XLA compilations of whole programs while it is on."""

    def __init__(self):
        self.count = 0
        monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event, *_args, **_kwargs):
        self.count += event == "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def compilations():
    return CompilationCounter()


@pytest.fixture(scope="module")
def result():
    return pgps.sample(gaussian, STANDARD, key=KEY, num_particles=64, method=quick(langevin_steps=2))


class TestResult:
    def test_shapes(self, result):
        assert result.particles.shape == (64, 2)
        assert result.log_weights.shape == (64,)
        assert result.num_particles == 64
        np.testing.assert_array_equal(result.log_weights, 0.0)

    def test_status(self, result):
        assert result.status == Status.COMPLETED
        assert result.t == 1.0
        assert result.warnings == ()

    def test_unweighted_methods_claim_no_evidence(self, result):
        assert result.log_evidence is None
        assert result.log_evidence_error is None
        assert result.ess is None

    def test_trace_ends_at_one_and_adds_up(self, result):
        trace = result.trace
        assert trace["t"][-1] == 1.0
        np.testing.assert_allclose(trace["dt"].sum(), 1.0, rtol=1e-6)
        assert set(trace) == {
            "t", "dt", "loss", "training_steps", "converged", "field_norm", "adjustment_steps", "acceptance", "covered",
            "width_spread", "width_ratio", "faults", "inside", "evaluations"
        }  # fmt: skip
        assert len({len(values) for values in trace.values()}) == 1
        assert np.all(np.diff(trace["evaluations"]) > 0)
        assert 64 * trace["evaluations"][-1] == result.num_evaluations.total

    def test_summary_names_what_matters(self, result):
        text = result.summary()
        for word in ("PGPS", "completed", "64 particles", "x[0]", "x[1]", "mean", "log evidence: none"):
            assert word in text

    def test_provenance_repeats_the_run(self, result):
        key = jax.random.wrap_key_data(jnp.asarray(result.provenance["key"], jnp.uint32))
        again = pgps.sample(gaussian, STANDARD, key=key, num_particles=64, method=quick(langevin_steps=2))
        np.testing.assert_array_equal(again.particles, result.particles)

    def test_another_key_gives_other_particles(self, result):
        other = pgps.sample(gaussian, STANDARD, key=jax.random.key(1), num_particles=64, method=quick(langevin_steps=2))
        assert not np.any(np.asarray(other.particles) == np.asarray(result.particles))


def test_samples_any_pytree():
    initial = pgps.Normal({"a": jnp.zeros(2), "b": (jnp.ones(()),)}, 1.0)

    def logdensity(x):
        return -0.5 * jnp.sum(x["a"] ** 2) - 0.5 * (x["b"][0] - 3.0) ** 2

    result = pgps.sample(
        logdensity, initial, key=KEY, num_particles=256, method=pgps.training_free(langevin_step_size=0.1)
    )
    assert result.particles["a"].shape == (256, 2)
    assert result.particles["b"][0].shape == (256,)
    # The stationary variance of Langevin steps of 0.1 on a unit Gaussian is 1/(1-0.05); 4 standard errors of the mean.
    assert abs(float(result.particles["b"][0].mean()) - 3.0) < 4 * np.sqrt(1.053 / 256)
    assert "b[0] " in result.summary()


def test_training_free_carries_a_gaussian_to_a_gaussian():
    result = pgps.sample(
        gaussian, STANDARD, key=KEY, num_particles=2000, method=pgps.training_free(langevin_step_size=0.05)
    )
    variance = 1 / (1 - 0.05 / 2)
    error = np.sqrt(variance / 2000)
    np.testing.assert_allclose(result.particles.mean(axis=0), 1.0, atol=4 * error)
    np.testing.assert_allclose(result.particles.var(axis=0), variance, atol=4 * variance * np.sqrt(2 / 2000))


def test_float64_in_float64_out(x64):
    law = pgps.Normal(0.0, 1.0, shape=(2,))
    result = pgps.sample(gaussian, law, key=KEY, num_particles=16, method=quick())
    assert result.particles.dtype == jnp.float64
    assert result.trace["t"].dtype == np.float64


def test_a_pair_of_functions_is_an_initial_law():
    pair = (lambda key: jax.random.normal(key, (2,)), lambda x: -0.5 * jnp.sum(x**2) - jnp.log(2 * jnp.pi))
    result = pgps.sample(gaussian, pair, key=KEY, num_particles=32, method=quick())
    assert result.particles.shape == (32, 2)


def test_legacy_keys_are_keys():
    kept = pgps.sample(gaussian, STANDARD, key=jax.random.PRNGKey(0), num_particles=8, method=quick())
    typed = pgps.sample(gaussian, STANDARD, key=KEY, num_particles=8, method=quick())
    np.testing.assert_array_equal(kept.particles, typed.particles)


def test_evaluations_are_counted_not_estimated():
    """One per particle at the start and one at each time step; methods with Langevin steps are in test_methods."""
    logdensity, calls = counting(gaussian)
    result = pgps.sample(logdensity, STANDARD, key=KEY, num_particles=4, method=quick())
    jax.effects_barrier()
    assert result.num_evaluations.gradients == calls["gradient"] == 4 * (1 + len(result.trace["t"]))
    assert result.num_evaluations.values == calls["value"] == 0
    assert result.num_evaluations.total == calls["gradient"]


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
class TestCompilation:
    def test_new_values_are_not_a_new_program(self, compilations):
        traces = 0

        def logdensity(x):
            nonlocal traces
            traces += 1
            return gaussian(x)

        def run(key, **changes):
            pgps.sample(logdensity, STANDARD, key=key, num_particles=32, method=quick(langevin_steps=1, **changes))

        before = compilations.count
        run(KEY)
        assert compilations.count > before
        before = compilations.count
        for key, changes in (
            (jax.random.key(1), {"alpha": 0.5, "beta": 0.3, "psi": 0.7}),
            (KEY, {"langevin_step_size": 1e-3, "learning_rate": 1e-1, "max_training_steps": 7, "max_dt": 0.5}),
        ):
            first = traces
            run(key, **changes)
            # Only the checks, which compile nothing, look at the function again.
            assert traces - first <= 3
        assert compilations.count == before

    def test_new_data_in_a_target_is_not_a_new_program(self, compilations):
        method = pgps.methods.Langevin(step_size=1e-4, num_steps=3)
        mixture, _ = pgps.targets.two_modes()
        moved = eqx.tree_at(lambda mixture: mixture.means, mixture, mixture.means + 1.0)
        pgps.sample(mixture, STANDARD, key=KEY, num_particles=32, method=method)
        before = compilations.count
        pgps.sample(moved, STANDARD, key=KEY, num_particles=32, method=method)
        assert compilations.count == before


class TestChunks:
    def test_results_do_not_depend_on_how_a_run_is_cut(self):
        seen = []
        whole = pgps.sample(gaussian, STANDARD, key=KEY, num_particles=16, method=quick(max_dt=0.02))
        cut = pgps.sample(
            gaussian, STANDARD, key=KEY, num_particles=16, method=quick(max_dt=0.02), callback=seen.append
        )
        np.testing.assert_array_equal(whole.particles, cut.particles)
        np.testing.assert_array_equal(whole.trace["loss"], cut.trace["loss"])

    def test_a_short_langevin_run_is_the_start_of_a_long_one(self):
        seen = {}
        pgps.sample(
            gaussian,
            STANDARD,
            key=KEY,
            num_particles=8,
            method=pgps.methods.Langevin(0.05, 20),
            callback=lambda snapshot: seen.update({snapshot.num_steps: snapshot.particles}),
        )
        short = pgps.sample(gaussian, STANDARD, key=KEY, num_particles=8, method=pgps.methods.Langevin(0.05, 8))
        np.testing.assert_array_equal(seen[8], short.particles)

    def test_the_callback_sees_the_start_and_every_step(self):
        seen = []
        result = pgps.sample(gaussian, STANDARD, key=KEY, num_particles=16, method=quick(), callback=seen.append)
        np.testing.assert_allclose([snapshot.t for snapshot in seen], [0.0, *result.trace["t"]], rtol=1e-6)
        assert [snapshot.num_steps for snapshot in seen] == list(range(len(seen)))
        np.testing.assert_array_equal(seen[-1].particles, result.particles)
        assert seen[0].row == {}
        np.testing.assert_allclose(seen[1].row["loss"], result.trace["loss"][0], rtol=1e-6)


@pytest.mark.parametrize("num_steps", [3, 7, 50, 100])
def test_t_reaches_one_in_as_many_steps_as_it_should(num_steps):
    method = pgps.training_free(dt=1 / num_steps, langevin_steps=0)
    result = pgps.sample(gaussian, STANDARD, key=KEY, num_particles=4, method=method)
    assert result.t == 1.0
    assert len(result.trace["t"]) == num_steps


class TestBadInput:
    """Each is refused before anything is compiled, with the argument's name, its value and a remedy."""

    @pytest.fixture(autouse=True)
    def _nothing_is_compiled(self, monkeypatch):
        def refuse(*_):
            raise AssertionError("the sampler was started")

        # The module, not the function of the same name that the package exports.
        monkeypatch.setattr(sys.modules["pgps.sample"], "drive", refuse)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"num_particles": 1}, ValueError, ["num_particles", "1", "at least 2"]),
            ({"num_particles": 10**24}, ValueError, ["num_particles", "at most", "smaller"]),
            ({"num_particles": 2.5}, TypeError, ["num_particles", "2.5", "integer"]),
            ({"key": 0}, TypeError, ["key", "0", "jax.random.key(0)"]),
            ({"key": jax.random.split(KEY)}, TypeError, ["key", "single"]),
            ({"method": "paper"}, TypeError, ["method", "'paper'", "pgps.paper()"]),
            ({"initial": 3.0}, TypeError, ["initial", "3.0", "pgps.Normal"]),
            ({"logdensity_fn": 1.0}, TypeError, ["logdensity_fn", "1.0", "callable"]),
            ({"logdensity_fn": lambda x: x}, ValueError, ["logdensity_fn", "float32[2]", "scalar"]),
            ({"logdensity_fn": lambda x: (x[0], x[1])}, ValueError, ["logdensity_fn", "scalar"]),
            ({"logdensity_fn": lambda x: jnp.sum(x > 0)}, ValueError, ["logdensity_fn", "int32", "scalar"]),
            (
                {"logdensity_fn": lambda x: x["w"].sum()},
                ValueError,
                ["logdensity_fn", "float32[2]", "particle"],
            ),
            ({"logdensity_fn": lambda x: float(np.sum(x))}, ValueError, ["logdensity_fn", "jax.numpy"]),
            ({"initial": (lambda key: jnp.arange(2), gaussian)}, TypeError, ["initial", "int32", "float"]),
            ({"initial": (jax.random.normal, lambda x: x * jnp.ones(3))}, ValueError, ["initial", "[3]"]),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_arguments_of_sample(self, change, error, words):
        arguments = {"logdensity_fn": gaussian, "initial": STANDARD, "key": KEY, "num_particles": 8} | change
        with pytest.raises(error) as caught:
            pgps.sample(arguments.pop("logdensity_fn"), arguments.pop("initial"), **arguments)
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: pgps.paper(alpha=1.5), ["alpha", "1.5", "[0, 1]"]),
            (lambda: pgps.paper(alpha=-0.1), ["alpha", "-0.1", "[0, 1]"]),
            (lambda: pgps.paper(alpha=float("nan")), ["alpha", "nan", "finite"]),
            (lambda: pgps.paper(beta=0.0), ["beta", "0.0", "(0, 1]"]),
            (lambda: pgps.paper(beta=1.1), ["beta", "1.1", "(0, 1]"]),
            (lambda: pgps.paper(psi=0.0), ["psi", "0.0", "positive"]),
            (lambda: pgps.paper(psi=-1.0), ["psi", "-1.0", "positive"]),
            (lambda: pgps.paper(max_dt=0.0), ["max_dt", "0.0"]),
            (lambda: pgps.paper(max_training_steps=0), ["max_steps", "0"]),
            (lambda: pgps.paper(threshold=-1.0), ["threshold", "-1.0"]),
            (lambda: pgps.paper(learning_rate=0.0), ["learning_rate", "0.0"]),
            (lambda: pgps.paper(width=0), ["width", "0"]),
            (lambda: pgps.paper(langevin_steps=-1), ["num_steps", "-1"]),
            (lambda: pgps.paper(langevin_steps=1, langevin_step_size=0.0), ["step_size", "0.0"]),
            (lambda: pgps.training_free(dt=2.0), ["dt", "2.0"]),
            (lambda: pgps.methods.Langevin(step_size=-1.0), ["step_size", "-1.0"]),
        ],
    )
    def test_settings_of_parts(self, make, words):
        with pytest.raises((ValueError, TypeError)) as caught:
            make()
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message

    def test_parts_must_be_of_their_family(self):
        with pytest.raises(TypeError, match="path"):
            eqx.tree_at(lambda method: method.path, pgps.paper(), "geometric").__check_init__()


def half(x):
    """A density that is nan on the left."""
    return jnp.where(x[0] < 0, jnp.nan, -jnp.sum(x**2))


class TestFaults:
    # Where the density fails at the start, no method takes a step.
    cheap = pgps.methods.Langevin(step_size=0.1, num_steps=3)

    def test_nan_at_every_initial_particle(self):
        with pytest.raises(ValueError, match="logdensity_fn.*nan or -inf at all 8 particles"):
            pgps.sample(lambda x: jnp.sum(x) * jnp.nan, STANDARD, key=KEY, num_particles=8, method=self.cheap)

    def test_no_support_at_any_initial_particle(self):
        def far(x):
            return jnp.where(x[0] > 100.0, 0.0, -jnp.inf)

        with pytest.raises(ValueError, match="start where the target has mass"):
            pgps.sample(far, STANDARD, key=KEY, num_particles=8, method=self.cheap)

    @pytest.mark.parametrize(
        "method",
        [quick(langevin_steps=10, langevin_step_size=0.1), pgps.training_free(dt=0.05, langevin_step_size=0.1)],
        ids=["paper", "training-free"],
    )
    def test_nan_on_the_way(self, method):
        def cliff(x):
            return jnp.where(x[0] < 2.5, -0.5 * jnp.sum((x - 3.0) ** 2), jnp.nan)

        start = pgps.Normal(-1.0, 0.5, shape=(2,))
        with pytest.warns(pgps.PGPSWarning, match="nan") as caught:
            result = pgps.sample(cliff, start, key=KEY, num_particles=50, method=method)
        assert result.status == Status.NONFINITE_DENSITY
        assert 0 < result.t < 1
        assert result.t == result.trace["t"][-1]
        # The last good state: every particle is where the density is finite.
        assert np.all(np.isfinite(jax.vmap(cliff)(result.particles)))
        message = result.warnings[0]
        assert message in str(caught[0].message)
        failed_at = float(message.split("at t = ")[1].split()[0])
        assert failed_at > result.t
        assert "of 50 particles (the first: " in message
        assert "doubt: " in result.summary()

    def test_nan_at_some_initial_particles_ends_at_once(self):
        with pytest.warns(pgps.PGPSWarning, match="at t = 0 for"):
            result = pgps.sample(half, STANDARD, key=KEY, num_particles=50, method=self.cheap)
        assert result.status == Status.NONFINITE_DENSITY
        assert len(result.trace["t"]) == 0
        assert result.particles.shape == (50, 2)
        assert result.summary()

    def test_throw(self):
        with pytest.raises(RuntimeError, match="nan"):
            pgps.sample(half, STANDARD, key=KEY, num_particles=50, method=self.cheap, throw=True)

    def test_particles_that_fly_off(self):
        method = pgps.methods.Langevin(step_size=1e3, num_steps=1000)
        with pytest.warns(pgps.PGPSWarning, match="steps were too large"):
            result = pgps.sample(lambda x: 1e37 * jnp.sum(x), STANDARD, key=KEY, num_particles=8, method=method)
        assert result.status == Status.NONFINITE_PARTICLES
        assert np.all(np.isfinite(result.particles))

    def test_every_particle_outside_the_support_is_a_failure(self):
        method = pgps.methods.Langevin(step_size=1.0, num_steps=50)
        with pytest.warns(pgps.PGPSWarning, match="became -inf at t = .* for every particle"):
            result = pgps.sample(lambda x: -jnp.sum(x**4), STANDARD, key=KEY, num_particles=20, method=method)
        assert result.status == Status.OUTSIDE_SUPPORT
        assert result.t < 1
        assert np.all(np.isfinite(result.log_weights))

    def test_a_field_that_diverges(self):
        with pytest.warns(pgps.PGPSWarning, match="training diverged; the particles returned .* at t = 0"):
            result = pgps.sample(
                gaussian, STANDARD, key=KEY, num_particles=8, method=quick(learning_rate=1e38, threshold=1e-3)
            )
        assert result.status == Status.NONFINITE_PARTICLES
        assert np.all(np.isfinite(result.particles))

    def test_step_limit(self):
        method = eqx.tree_at(lambda method: method.max_steps, quick(), 2)
        with pytest.warns(pgps.PGPSWarning, match="step limit of 2"):
            result = pgps.sample(gaussian, STANDARD, key=KEY, num_particles=8, method=method)
        assert result.status == Status.STEP_LIMIT
        assert 0 < result.t < 1
        assert len(result.trace["t"]) == 2

    def test_interruption_returns_what_there_is(self):
        def interrupt(snapshot):
            if snapshot.num_steps == 3:
                raise KeyboardInterrupt

        with pytest.warns(pgps.PGPSWarning, match="interrupted at t = "):
            result = pgps.sample(gaussian, STANDARD, key=KEY, num_particles=8, method=quick(), callback=interrupt)
        assert result.status == Status.INTERRUPTED
        assert len(result.trace["t"]) == 3
        assert result.t == result.trace["t"][-1]

    def test_regions_without_support_are_legal(self):
        def half_plane(x):
            return jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), -jnp.inf)

        with pytest.warns(pgps.PGPSWarning, match="outside the target's support"):
            result = pgps.sample(half_plane, STANDARD, key=KEY, num_particles=200, method=quick())
        assert result.status == Status.COMPLETED
        outside = np.asarray(result.particles[:, 0]) <= 0
        np.testing.assert_array_equal(np.isneginf(result.log_weights), outside)
        assert outside.sum() > 0

    def test_training_that_falls_short_is_told(self):
        with pytest.warns(pgps.PGPSWarning, match="above its threshold at .* steps"):
            pgps.sample(gaussian, STANDARD, key=KEY, num_particles=16, method=quick(threshold=1e-12))


class TestProgress:
    def test_silent_when_not_on_a_terminal(self, capfd):
        pgps.sample(gaussian, STANDARD, key=KEY, num_particles=8, method=quick())
        captured = capfd.readouterr()
        assert captured.out == captured.err == ""

    def test_shows_time_step_loss_and_speed(self, capfd):
        pgps.sample(gaussian, STANDARD, key=KEY, num_particles=8, method=quick(), progress=True)
        shown = capfd.readouterr().err
        for word in ("t = 1.000", "step", "loss", "steps/s"):
            assert word in shown
