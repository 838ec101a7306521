"""A fixed ladder: every time is visited, once, in either precision."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps.steppers import Clock, Ladder

LADDERS = {
    "one": (1.0,),
    "a-few": (0.1, 0.35, 0.8, 1.0),
    "tenths": tuple(k / 10 for k in range(1, 11)),
    "thirds": (1 / 3, 2 / 3, 1.0),
    "powers": tuple((k / 40) ** 4 for k in range(1, 41)),
    "many": tuple(k / 301 for k in range(1, 302)),
}


def times_visited(ladder: Ladder, dtype: str) -> list[float]:
    still = jnp.zeros((2, 1), dtype)
    advance = jax.jit(lambda clock: clock.advance(ladder.time_step(clock.t, still, still[:, 0], still[:, 0]))[0])
    clock, times = Clock.start(jnp.dtype(dtype)), []
    while clock.t < 1 and len(times) <= len(ladder.times):
        clock = advance(clock)
        times.append(float(clock.t))
    return times


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LADDERS)
@pytest.mark.usefixtures("x64")
def test_every_time_is_visited_once(name: str, dtype: str):
    expected = np.array(LADDERS[name], dtype)
    times = np.array(times_visited(Ladder(LADDERS[name]), dtype), dtype)
    assert len(times) == len(expected)
    assert times[-1] == 1.0
    # A sum t + (T - t) may be off in its last place.
    np.testing.assert_array_max_ulp(times, expected, maxulp=1)


@pytest.mark.parametrize("times", [(0.9995, 1.0), (0.5, 0.9999, 1.0)])
def test_a_short_last_step_is_visited_too(times: tuple[float, ...]):
    np.testing.assert_allclose(times_visited(Ladder(times), "float32"), times, rtol=1e-6)


def test_lists_and_arrays_of_numbers():
    assert Ladder([0.5, 1]).times == (0.5, 1)


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        ((), TypeError, r"times must be a sequence of numbers, got \(\); "),
        (1.0, TypeError, "times must be a sequence of numbers, got 1.0; "),
        ((0.5, 0.9), ValueError, "times must increase from above 0 to 1, got .*; "),
        ((0.0, 1.0), ValueError, "times must increase from above 0 to 1, got .*; "),
        ((-0.5, 1.0), ValueError, "times must increase from above 0 to 1, got .*; "),
        ((0.5, 0.5, 1.0), ValueError, "times must increase from above 0 to 1, got .*; "),
        ((0.7, 0.5, 1.0), ValueError, "times must increase from above 0 to 1, got .*; "),
        ((0.5, 1.0, 2.0), ValueError, "times must increase from above 0 to 1, got .*; "),
        ((np.nan, 1.0), ValueError, "times must be finite, got nan; "),
        (("a", 1.0), TypeError, "times must be a number, got 'a'; "),
    ],
)
def test_bad_arguments(times: tuple, error: type[Exception], message: Callable):
    with pytest.raises(error, match=message) as caught:
        Ladder(times)
    assert "\n" not in str(caught.value)
