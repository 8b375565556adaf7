"""Waves: their integrals belong to their values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.scenario import Shape, Waveform, constant

seconds = st.floats(-1e5, 1e5)
waves = st.builds(
    Waveform,
    low=st.floats(0, 50),
    high=st.floats(50, 100),
    period=st.floats(1, 500),
    phase=st.floats(-500, 500),
    shape=st.sampled_from(Shape),
)


@given(waves, seconds)
def test_a_wave_stays_between_its_bounds(wave, t):
    assert wave.low <= wave.value(t) <= wave.high


@given(waves, seconds, seconds, seconds)
def test_integrals_add_up(wave, a, b, c):
    whole = wave.integral(a, c)
    assert wave.integral(a, b) + wave.integral(b, c) == pytest.approx(whole, rel=1e-9, abs=1e-3)


@given(waves)
def test_the_integral_over_whole_periods_is_their_mean(wave):
    mean = (wave.low + wave.high) / 2
    assert wave.integral(3, 3 + 4 * wave.period) == pytest.approx(4 * wave.period * mean)


@pytest.mark.parametrize("shape", Shape)
def test_the_integral_is_the_area_under_the_values(shape):
    wave = Waveform(low=1, high=5, period=7, phase=2, shape=shape)
    step = 1e-3
    area = sum(wave.value((i + 0.5) * step) for i in range(20_000)) * step
    assert wave.integral(0, 20) == pytest.approx(area, rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        (Shape.SINE, [0, 0.5, 1, 0.5, 0]),
        (Shape.SAW, [0, 0.25, 0.5, 0.75, 0]),
        (Shape.BURST, [1, 1, 0, 0, 1]),
    ],
)
def test_each_shape_over_one_period(shape, values):
    wave = Waveform(low=0, high=1, period=8, shape=shape)
    assert [wave.value(t) for t in (0, 2, 4, 6, 8)] == pytest.approx(values)


def test_a_burst_was_last_active_when_its_high_half_ended():
    wave = Waveform(low=0, high=1, period=10, phase=3, shape=Shape.BURST)
    assert wave.last_active(1) == 1
    assert wave.last_active(5) == 2
    assert wave.last_active(6.9) == 2
    assert wave.last_active(7) == 7


def test_a_wave_that_is_never_above_zero_was_never_active():
    assert constant(0).last_active(100) is None
