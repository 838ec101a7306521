"""Algorithm 1, and the clock that ends at exactly 1."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from helpers import STEPPERS, as_arrays, normal_array, over
from pgps.steppers import AbstractStepper, Clock, Fixed, ParticleStep
from pgps.steppers.base import crossings


@over("stepper", STEPPERS)
@pytest.mark.parametrize("t", [0.0, 0.37, 0.99999])
@pytest.mark.parametrize("speed", [0.0, 1e-6, 1.0, 1e6])
def test_a_time_step_is_positive_and_ends_by_1(stepper: AbstractStepper, t: float, speed: float):
    dt = stepper.time_step(jnp.asarray(t), speed * normal_array(8, 3), speed * normal_array(8, seed=1), jnp.zeros(8))
    assert dt.shape == ()
    assert dt.dtype == jnp.float32
    assert 0 < dt <= 1 - np.float32(t)


@over("stepper", STEPPERS)
def test_every_stepper_reaches_1(stepper: AbstractStepper):
    t, num_steps, *_ = run(as_arrays(stepper), normal_array(8, 3))
    assert t == 1.0
    assert num_steps < 1000


def time_step(stepper: AbstractStepper, t: float, velocity: Array) -> Array:
    """The time step of a stepper that looks at the field alone."""
    nothing = jnp.zeros(len(velocity))
    return stepper.time_step(jnp.asarray(t), velocity, nothing, nothing)


class TestParticleStep:
    """dt = min(psi / mean_i |phi(x_i)|, dt', 1 - t)."""

    velocity = np.array([[3.0, 4.0], [0.0, 0.0], [-6.0, 8.0]])

    @pytest.mark.parametrize(
        ("psi", "max_dt", "t", "expected"),
        [
            pytest.param(0.1, 0.5, 0.3, 0.1 / 5.0, id="psi-over-mean-speed"),
            pytest.param(50.0, 0.02, 0.3, 0.02, id="max-dt"),
            pytest.param(50.0, 0.5, 0.9, 0.1, id="remainder"),
        ],
    )
    @pytest.mark.usefixtures("x64")
    def test_algorithm_1(self, psi: float, max_dt: float, t: float, expected: float):
        # Norms are 5, 0 and 10: their mean is 5, the norm of the mean is not.
        by_hand = min(psi / np.mean(np.sqrt(np.sum(self.velocity**2, axis=1))), max_dt, 1 - t)
        assert by_hand == pytest.approx(expected, abs=1e-12)
        dt = time_step(ParticleStep(psi, max_dt), t, jnp.asarray(self.velocity))
        assert float(dt) == pytest.approx(by_hand, abs=1e-15)

    def test_a_field_of_zero_takes_the_largest_step(self):
        assert time_step(ParticleStep(0.1, 0.25), 0.0, jnp.zeros((5, 2))) == 0.25

    def test_particles_move_by_psi_on_average(self):
        velocity = 7 * normal_array(100, 3)
        dt = time_step(ParticleStep(0.05, 1.0), 0.0, velocity)
        assert float(jnp.mean(jnp.linalg.norm(dt * velocity, axis=1))) == pytest.approx(0.05, rel=1e-5)


class TestFixed:
    """dt = min(dt, 1 - t), whatever the field."""

    @pytest.mark.parametrize(("t", "expected"), [(0.0, 0.3), (0.5, 0.3), (0.875, 0.125)])
    def test_time_step(self, t: float, expected: float):
        for speed in (0.0, 1e9):
            dt = time_step(Fixed(0.3), t, jnp.full((4, 2), speed))
            assert dt == np.float32(expected)


@eqx.filter_jit
def run(stepper: AbstractStepper, velocity: Array) -> tuple[Array, Array, Array, Array]:
    """Step until t = 1: t, the number of steps, the last step and the sum of all of them."""

    def step(carry: tuple) -> tuple:
        clock, k, _, total = carry
        clock, dt = clock.advance(stepper.time_step(clock.t, velocity, 3 * velocity[:, 0], jnp.zeros(len(velocity))))
        return clock, k + 1, dt, total + dt

    unfinished = lambda carry: (carry[0].t < 1) & (carry[1] < 30_000)  # noqa: E731
    zero, start = jnp.zeros((), velocity.dtype), Clock.start(velocity.dtype)
    clock, k, last, total = jax.lax.while_loop(unfinished, step, (start, jnp.asarray(0), zero, zero))
    return clock.t, k, last, total


class TestClock:
    """t ends at exactly 1, with no residue of float32 that costs a step."""

    @pytest.mark.parametrize("n", [*range(1, 130), 200, 250, 333, 500, 512, 777, 999, 1000, 1024, 2000, 3333, 5000])
    def test_n_steps_of_one_nth(self, n: int):
        t, num_steps, last, _ = run(Fixed(jnp.float32(1 / n)), jnp.ones((2, 1), jnp.float32))
        assert t.dtype == jnp.float32
        assert (float(t), int(num_steps)) == (1.0, n)
        # The clock may take 1e-3 of a step along with the last one, but here it has no need to.
        assert float(last) == pytest.approx(1 / n, rel=1e-3)

    @pytest.mark.parametrize("n", [3, 7, 50, 999])
    def test_n_particle_steps_of_one_nth(self, n: int):
        # A stepper whose dt comes out of a division rather than of a constant.
        t, num_steps, *_ = run(as_arrays(ParticleStep(0.7 / n, 1.0)), jnp.full((3, 1), -0.7))
        assert (float(t), int(num_steps)) == (1.0, n)

    @pytest.mark.usefixtures("x64")
    def test_double_precision(self):
        for n in (3, 10, 49, 5000):
            t, num_steps, *_ = run(Fixed(jnp.float64(1 / n)), jnp.ones((2, 1)))
            assert t.dtype == jnp.float64
            assert (float(t), int(num_steps)) == (1.0, n)

    def test_the_published_step_does_not_need_a_51st(self):
        t = np.float32(0)
        for _ in range(50):
            t += np.float32(0.02)
        assert t < 1
        assert [float(value) for value in run(Fixed(jnp.float32(0.02)), jnp.ones((2, 1)))[:2]] == [1.0, 50.0]

    def test_a_remainder_is_a_last_step(self):
        for dt, n in ((0.3, 4), (0.7, 2), (0.4, 3), (0.15, 7)):
            t, num_steps, last, _ = run(Fixed(jnp.float32(dt)), jnp.ones((2, 1)))
            assert (float(t), int(num_steps)) == (1.0, n)
            assert float(last) == pytest.approx(1 - (n - 1) * dt, rel=1e-4)

    def test_a_step_never_goes_beyond_1(self):
        clock, first = Clock.start(jnp.dtype("float32")).advance(jnp.float32(0.75))
        clock, second = clock.advance(jnp.float32(0.75))
        assert [float(value) for value in (first, second, clock.t)] == [0.75, 0.25, 1.0]

    @pytest.mark.parametrize("share", [1e-5, 1e-3])
    def test_a_remainder_of_rounding_size_is_taken_along(self, share: float):
        # Ten steps and a bit more.
        dt = 1 / (10 + share)
        _, num_steps, last, _ = run(Fixed(jnp.float32(dt)), jnp.ones((2, 1)))
        assert num_steps == (10 if share < 1e-4 else 11)
        assert float(last) == pytest.approx(dt * (1 + share) if share < 1e-3 else dt * share, abs=1e-6)

    def test_random_steps(self):
        advance = jax.jit(lambda clock, dt: clock.advance(jnp.minimum(dt, 1 - clock.t)))
        for seed in range(20):
            rng = np.random.default_rng(seed)
            asked = rng.uniform(1e-4, 3e-2, 10_000).astype(np.float32)
            clock, taken = Clock.start(jnp.dtype("float32")), []
            for dt in asked:
                clock, step = advance(clock, dt)
                taken.append(float(step))
                if clock.t == 1:
                    break
            taken = np.array(taken)
            assert float(clock.t) == 1.0
            # All steps but the last are as asked for; the steps add up to 1 but for float32's rounding of each.
            np.testing.assert_array_equal(taken[:-1], asked[: len(taken) - 1])
            assert abs(taken.sum() - 1) < 1e-7
            # What is left for a last step is never a mere residue of the one before.
            assert taken[-1] > 0.99e-3 * taken[-2]
            assert taken[-1] <= asked[len(taken) - 1] * (1 + 1.01e-3)

    def test_time_rises(self):
        clock, times = Clock.start(jnp.dtype("float32")), [0.0]
        for _ in range(40):
            clock, _ = clock.advance(jnp.float32(1 / 40))
            times.append(float(clock.t))
        np.testing.assert_allclose(times, np.arange(41) / 40, rtol=1e-7)


class TestCrossings:
    """How many multiples of a spacing lie in (before, after]."""

    @pytest.mark.parametrize(
        ("before", "after", "spacing", "expected"),
        [
            (0.0, 0.02, 0.1, 0),
            (0.08, 0.1, 0.1, 1),
            (0.1, 0.12, 0.1, 0),
            (0.09, 0.11, 0.1, 1),
            (0.0, 1.0, 0.1, 10),
            (0.25, 0.55, 0.1, 3),
            (0.0, 0.3, 0.3, 1),
            (0.9, 1.0, 0.3, 0),
            (0.98, 1.0, 1.0, 1),
        ],
    )
    def test_by_hand(self, before: float, after: float, spacing: float, expected: int):
        assert crossings(jnp.float32(before), jnp.float32(after), spacing) == expected

    @pytest.mark.parametrize("num_steps", [10, 50, 100, 1000])
    @pytest.mark.parametrize("num_cells", [1, 3, 10, 100])
    def test_a_grid_is_crossed_once_per_cell(self, num_steps: int, num_cells: int):
        def advance(clock: Clock, _unused: None) -> tuple[Clock, Array]:
            clock, _ = clock.advance(jnp.float32(1 / num_steps))
            return clock, clock.t

        _, after = jax.lax.scan(advance, Clock.start(jnp.dtype("float32")), length=num_steps)
        counts = np.asarray(crossings(jnp.concatenate([jnp.zeros(1), after[:-1]]), after, 1 / num_cells))
        assert counts.sum() == num_cells
        # The k-th multiple is reached at the step that ends on it or is the first beyond it.
        reached = np.searchsorted(np.cumsum(counts), np.arange(1, num_cells + 1))
        np.testing.assert_array_equal(reached, [-(-k * num_steps // num_cells) - 1 for k in range(1, num_cells + 1)])


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ParticleStep(psi=0.0), ValueError, "psi must be positive, got 0.0; "),
        (lambda: ParticleStep(psi=-1), ValueError, "psi must be positive, got -1; "),
        (lambda: ParticleStep(psi=np.inf), ValueError, "psi must be finite, got inf; "),
        (lambda: ParticleStep(psi="small"), TypeError, "psi must be a number, got 'small'; "),
        (lambda: ParticleStep(max_dt=0.0), ValueError, r"max_dt must lie in \(0, 1\], got 0.0; "),
        (lambda: ParticleStep(max_dt=1.5), ValueError, r"max_dt must lie in \(0, 1\], got 1.5; "),
        (lambda: Fixed(dt=0.0), ValueError, r"dt must lie in \(0, 1\], got 0.0; "),
        (lambda: Fixed(dt=2.0), ValueError, r"dt must lie in \(0, 1\], got 2.0; "),
        (lambda: Fixed(dt=np.nan), ValueError, "dt must be finite, got nan; "),
        (lambda: Fixed(dt=None), TypeError, "dt must be a number, got None; "),
    ],
)
def test_bad_arguments(make: Callable[[], object], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()
