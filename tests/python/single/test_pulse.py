"""Hosts that do not respond are detected in time, and no others."""

from __future__ import annotations

import pytest

from horoscale.runner.pulse import DEFAULT_TIMEOUT_S, MIN_TIMEOUT_S, Pulse


@pytest.mark.parametrize("timeout", [MIN_TIMEOUT_S, 12.0, DEFAULT_TIMEOUT_S, 100.0])
@pytest.mark.parametrize("phase", [0.001, 0.25, 0.5, 0.75, 0.999])
def test_a_host_is_silent_before_the_timeout_and_not_long_before(
    timeout: float, phase: float
) -> None:
    pulse, now = Pulse(timeout), 0.0
    pulse.watch(1, now)
    pulse.watch(2, now)
    last_sign, silent = None, []
    while not silent:
        before, now = now, pulse.deadline or 0.0
        if now > 3 * timeout and last_sign is None:
            last_sign = before + phase * (now - before)
            pulse.heard(1)
        ask, silent = pulse.check(now)
        pulse.heard(2)  # it responds at once
        if last_sign is None:
            assert ask == [1, 2]
            pulse.heard(1)
    assert silent == [1]
    assert last_sign is not None
    assert 0.8 * timeout <= now - last_sign <= timeout
    assert pulse.check(now + 1000.0) == ([2], [])  # each is silent once


def test_a_launcher_that_was_stopped_itself_blames_nobody() -> None:
    pulse = Pulse(DEFAULT_TIMEOUT_S)
    pulse.watch(1, 0.0)
    for hour in range(1, 20):
        assert pulse.check(3600.0 * hour) == ([1], [])


def test_hosts_that_are_forgotten_are_not_asked() -> None:
    pulse = Pulse(DEFAULT_TIMEOUT_S)
    assert pulse.deadline is None
    pulse.watch(1, 5.0)
    pulse.forget([1, 2])
    pulse.heard(1)
    assert pulse.deadline is None
    assert pulse.check(100.0) == ([], [])
