"""The search of torch.compile's knob, against all values of it on made-up curves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.executor.memory.fit.knob import SPREAD, Probe, at_least_us, expected_us, next_knob

TRIES = 4
GRID = [k / 100 for k in range(101)]


def searched(curve, budget_bytes, tries=TRIES, share=1.0, *, only_hope=False):
    """What the search tried on a curve: knob -> (bytes, us)."""
    probes = []
    while len(probes) < tries and (knob := next_knob(probes, budget_bytes, share, only_hope=only_hope)) is not None:
        probes.append(Probe(knob, *curve(knob)))
    return probes


def rising(low, high, longest):
    """Bytes rise with the knob, the time falls."""
    return lambda knob: (round(low + (high - low) * knob), longest - (longest - 100.0) * knob)


@given(low=st.integers(100, 700), share=st.floats(0.02, 0.99), longest=st.floats(110.0, 140.0))
def test_on_a_rising_curve_the_best_of_all_knobs_is_nearly_found(low, share, longest):
    curve = rising(low, 1000, longest)
    budget = round(low + (1000 - low) * share)
    probes = searched(curve, budget)
    best_us = min((us for used, us in map(curve, GRID) if used <= budget), default=None)
    kept = [p for p in probes if p.keeps(budget)]
    assert best_us is not None and len({p.knob for p in probes}) == len(probes)
    if share >= 0.25:
        # Four tries leave an eighth of the knob open, the last hundredths of a budget a tenth of it at most on these
        # curves. The search also ends where half of what is open is not worth a compilation.
        assert kept and min(p.step_us for p in kept) <= best_us + max((longest - 100.0) * 0.26, 0.04 * longest)
    assert all(p.knob >= SPREAD[-1] for p in probes)


def test_the_first_try_is_enough_where_everything_fits():
    assert [p.knob for p in searched(rising(100, 1000, 130.0), 1000)] == [1.0]


def test_a_valley_is_found():
    """As measured of BERT-large, in hundredths of GiB and ms; at its lower peaks only 0.7 and 0.3 have room."""
    measured = {1.0: (1737, 81.6), 0.75: (1289, 84.8), 0.5: (1509, 101.4), 0.2: (1275, 104.9), 0.1: (1389, 101.3)}
    assert [p.knob for p in searched(measured.__getitem__, 1300)] == [1.0, 0.5, 0.2]
    assert [p.knob for p in searched(measured.__getitem__, 1280, tries=9)] == [1.0, 0.5, 0.2]
    assert [p.knob for p in searched(lambda k: (1509, 0.0) if k == 0.2 else measured[k], 1300)] == [
        1.0,
        0.5,
        0.2,
        0.75,
    ]


def test_the_search_begins_where_the_budget_lies():
    """As measured of ConvNeXt, in hundredths of GiB and ms."""
    measured = {1.0: (1128, 55.4), 0.75: (631, 56.0), 0.5: (631, 56.0), 0.2: (335, 63.5), 0.1: (300, 68.0)}
    assert [p.knob for p in searched(measured.__getitem__, 336, share=0.23)] == [0.2]
    assert [p.knob for p in searched(measured.__getitem__, 320, share=0.21)] == [0.2, 0.1]
    assert [p.knob for p in searched(measured.__getitem__, 640, share=0.5)] == [0.5]
    assert [p.knob for p in searched(measured.__getitem__, 700, share=0.18)][:2] == [0.2, 0.5]
    assert searched(measured.__getitem__, 1200, share=1.1)[0].knob == 1.0
    # 0.75 is nearer than 0.5; a step that keeps all is not tried where it cannot have room.
    assert [p.knob for p in searched(measured.__getitem__, 900, share=0.62)][:2] == [0.75, 1.0]
    assert [p.knob for p in searched(measured.__getitem__, 700, share=0.48)] == [0.5, 0.75]


def test_a_knob_that_moves_no_peak_is_left_alone():
    assert [p.knob for p in searched(lambda knob: (1000, 100.0 + knob), 900)] == [1.0, 0.5]
    assert [p.knob for p in searched(lambda knob: (1000 - round(100 * (1 - knob)), 100.0), 900, 2)] == [1.0, 0.5]


def test_a_knob_that_moves_no_peak_is_lowered_where_nothing_else_keeps_the_budget():
    tried = searched(lambda knob: (2110 if knob > 0.3 else 916, 100.0), 920, only_hope=True)
    assert [p.knob for p in tried[:3]] == [1.0, 0.5, 0.2]


def test_budgets_far_below_every_peak_end_the_search():
    """As measured of U-Net on an H200, in hundredths of GiB and ms: peaks hardly fall below 0.5."""
    measured = {1.0: (1460, 99.0), 0.75: (1090, 100.3), 0.5: (1040, 103.8), 0.2: (940, 113.7), 0.1: (980, 117.7)}
    assert [p.knob for p in searched(measured.__getitem__, 700, share=0.3)] == [0.2, 0.1]
    assert [p.knob for p in searched(measured.__getitem__, 800, share=0.3)] == [0.2, 0.1, 0.5]


def test_behind_a_higher_peak_nothing_is_looked_for():
    """As measured of ConvNeXt and T5 on an H200, in hundredths of GiB and ms."""
    falling = {1.0: (1128, 49.0), 0.75: (631, 51.2), 0.5: (631, 51.2), 0.2: (335, 57.8), 0.1: (269, 59.5)}
    assert [p.knob for p in searched(falling.__getitem__, 258, share=0.2)] == [0.2, 0.1]
    valley = {1.0: (455, 29.1), 0.75: (407, 28.1), 0.5: (345, 25.5), 0.2: (347, 26.6), 0.1: (421, 31.9)}
    assert [p.knob for p in searched(valley.__getitem__, 336, share=0.5)] == [0.5, 0.2, 0.75]


def test_half_of_a_gain_must_be_worth_a_compilation():
    above = Probe(1.0, 1000, 100.0)
    assert next_knob([above, Probe(0.5, 500, 104.0)], 900) is None
    assert next_knob([above, Probe(0.5, 500, 104.5)], 900) == 0.75


def test_a_time_that_cannot_fall_ends_the_search():
    probes = [Probe(1.0, 1000, 100.0), Probe(0.5, 500, 101.0)]
    assert next_knob(probes, 900) is None
    assert next_knob([probes[0], Probe(0.5, 500, 120.0)], 900) == 0.75
    assert next_knob([probes[0], Probe(0.5, 890, 120.0)], 900) is None


def test_a_device_that_ran_out_says_nothing_of_times():
    ran_out = Probe(1.0, 2000, 0.0, ran_out=True)
    assert not ran_out.keeps(3000)
    assert at_least_us([ran_out], 0.5) == expected_us([ran_out], 0.5) == 0.0
    assert next_knob([ran_out], 1000) == 0.5
    assert next_knob([ran_out, Probe(0.5, 500, 120.0)], 1000) == 0.75


def test_bounds_by_hand():
    probes = [Probe(1.0, 1000, 90.0), Probe(0.5, 700, 99.0), Probe(0.25, 600, 95.0)]
    assert at_least_us(probes, 0.1) == pytest.approx(0.97 * 99.0)
    assert at_least_us(probes, 0.75) == pytest.approx(0.97 * 90.0)
    assert expected_us(probes, 0.75) == pytest.approx(90.0 * (1 + 0.25 / 3))
    assert expected_us([], 1.0) == at_least_us([], 1.0) == 0.0
    # Of a higher one than all that were tried: no faster than by the whole forward pass, expected by its share.
    assert at_least_us(probes[1:2], 0.75) == pytest.approx(0.97 * 99.0 * 3 / 4)
    assert expected_us(probes[1:2], 0.75) == pytest.approx(99.0 / (1 + 0.25 / 3))
