"""The predictor: on figures that follow a rule it knows, on noise, and what it ships with."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.canonical import canonical_json
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray, HashTable, SortedArray
from loadmaster.models.index.features import Features
from loadmaster.models.index.predictor import (
    MeasuredRow,
    fit,
    predict,
    read_coefficients,
    shipped,
    write_coefficients,
)
from loadmaster.models.index.presets import CANDIDATES

EASY = Features(1_000_000, 100_000, 15_000, 0, 0, 0.01, 8192, 1_000_000)
HARD = Features(1_000_000, 100_000, 15_000, 0, 0, 0.01, 100, 20_000)
SORTS = ("lookups", "inserts", "erases", "scans")


def rule(features: Features, log: FragmentedLog) -> float:
    """Nanoseconds: a product of powers, which is a line of logarithms."""
    return 20.0 * features.keys**0.2 * features.local_keys**-0.3 * log.fragment_keys**0.25


def rows(noise: float, count: int = 60, seed: int = 0) -> list[MeasuredRow]:
    draw = random.Random(seed)
    found = []
    for trace in range(count):
        features = Features(
            int(2 ** draw.uniform(14, 24)), 1000, 0, 0, 0, 0.01, 2 ** draw.uniform(5, 13), 2 ** draw.uniform(10, 14)
        )
        for fragment in (16, 64, 256):
            log = FragmentedLog(fragment, 256, 16)
            read = rule(features, log) * math.exp(draw.gauss(0, noise))
            found.append(MeasuredRow(f"t{trace}", features, log, read, 2 * read, 24.0, 30.0))
    return found


def test_a_rule_that_is_a_line_is_found() -> None:
    found = fit(rows(0.0), "a rule")
    for features in (EASY, HARD, replace(EASY, keys=50_000, inserts=0.0)):
        for fragment in (16, 32, 256):
            log = FragmentedLog(fragment, 256, 16)
            cost = predict(features, log, found)
            assert cost.read_ns.expected == pytest.approx(rule(features, log), rel=0.15)
            assert cost.write_ns is not None
            assert cost.write_ns.expected == pytest.approx(2 * cost.read_ns.expected, rel=0.01)
            assert cost.peak_bytes.expected == pytest.approx(24 * (features.keys + features.inserts), rel=0.01)
            assert cost.rebuild_us == pytest.approx(30 * features.keys / 1e3, rel=0.01)


def test_quantiles_hold_on_traces_that_were_not_seen() -> None:
    found = fit(rows(0.3), "noise")
    below = above = 0
    unseen = rows(0.3, count=300, seed=1)
    for row in unseen:
        read = predict(row.features, row.configuration, found).read_ns
        assert row.read_ns is not None and read.lower is not None and read.upper is not None
        assert read.lower <= read.expected <= read.upper
        below += row.read_ns < read.lower
        above += row.read_ns > read.upper
    assert 0.05 < below / len(unseen) < 0.17 and 0.05 < above / len(unseen) < 0.17


def test_what_waits_for_a_change_is_what_it_moves() -> None:
    found = fit(rows(0.0), "a rule")

    def pause(log: FragmentedLog) -> float:
        waited = predict(EASY, log, found).pause_us
        assert waited is not None
        return waited.expected

    assert pause(FragmentedLog(64, 256)) == pytest.approx(64 * 256 * 30 / 1e3, rel=0.01)
    assert pause(FragmentedLog(64, 128)) == pytest.approx(pause(FragmentedLog(64, 256)) / 2)
    assert pause(FragmentedLog(4096, 1 << 20)) == pytest.approx(1_015_000 * 30 / 1e3, rel=0.01)
    of_all = shipped()
    assert predict(EASY, SortedArray(), of_all).pause_us is not None
    assert predict(EASY, SortedArray(), of_all).pause_us.expected == 0.0  # type: ignore[union-attr]


def test_nothing_that_was_measured_waited_longer_than_promised() -> None:
    draw = random.Random(5)
    noisy = [replace(row, change_ns=30 * math.exp(draw.gauss(0, 1))) for row in rows(0.0)]
    found = fit(noisy, "changes")
    for row in noisy:
        log, keys = row.configuration, row.features.keys + row.features.inserts
        assert isinstance(log, FragmentedLog) and row.change_ns is not None
        waited = predict(row.features, log, found).pause_us
        assert waited is not None and waited.lower is not None
        took = row.change_ns * min(keys, log.fragment_keys * log.most_fragments) / 1e3
        assert took <= waited.most and waited.lower < waited.expected


def test_scans_are_predicted_where_there_are_any() -> None:
    found = fit([replace(row, scan_ns=3000.0) for row in rows(0.0)], "scans")
    log = FragmentedLog(64, 256, 16)
    assert predict(EASY, log, found).scan_ns is None
    scan = predict(replace(EASY, scans=10), log, found).scan_ns
    assert scan is not None and scan.expected == pytest.approx(3000, rel=0.01)


@pytest.mark.parametrize(("loaded", "inserted"), [(1000, 0), (1000, 400), (7000, 14_000), (300, 8000)])
def test_a_hash_table_is_as_large_as_its_places(loaded: int, inserted: int) -> None:
    """Filled to seven tenths when it is made, and larger by half when it is that full again."""

    def bytes_of(features: Features) -> float:
        places = features.keys / 0.7
        while features.keys + features.inserts > 0.7 * places * (1 + 1e-9):
            places *= 1.5
        return 16 * places

    seen = []
    for n in range(200):
        draw = random.Random(n)
        features = replace(EASY, keys=draw.randrange(100, 100_000), inserts=float(draw.randrange(200_000)))
        key_bytes = bytes_of(features) / (features.keys + features.inserts)
        seen.append(MeasuredRow(f"t{n}", features, HashTable(), 20.0, 80.0, key_bytes, 20.0))
    unseen = replace(EASY, keys=loaded, inserts=float(inserted))
    peak = predict(unseen, HashTable(), fit(seen, "places")).peak_bytes
    assert peak.expected == pytest.approx(bytes_of(unseen), rel=0.03)


def test_coefficients_come_back_from_their_document() -> None:
    found = fit(rows(0.1), "a rule")
    document = json.loads(canonical_json(write_coefficients(found)))
    assert read_coefficients(document) == found


@pytest.mark.parametrize("configuration", CANDIDATES, ids=str)
def test_what_ships_knows_every_candidate(configuration: Configuration) -> None:
    """Loosely: nanoseconds and bytes of a plausible size, harder keys no quicker, more keys more bytes."""
    for features in (EASY, HARD, replace(EASY, keys=0, inserts=0.0)):
        cost = predict(features, configuration, shipped())
        assert 5 < cost.read_ns.expected < 5_000
        assert (cost.write_ns is None) == (not configuration.writable)
        assert cost.peak_bytes.expected >= 16 * features.keys
    easy, hard = predict(EASY, configuration, shipped()), predict(HARD, configuration, shipped())
    # How hard keys are to model means nothing to a hash table.
    least = 0.98 if isinstance(configuration, HashTable) else 1.0
    assert hard.read_ns.expected >= least * easy.read_ns.expected
    assert "measured" in shipped().source


def test_more_keys_than_were_measured_take_the_times_of_as_many() -> None:
    known = fit(rows(0.0, 20), "some")
    largest = replace(EASY, keys=int(known.most_keys / 2), inserts=known.most_keys / 2, global_keys=10.0)
    larger = replace(largest, keys=1000 * largest.keys, **{n: 1000 * getattr(largest, n) for n in SORTS})
    configuration = rows(0.0, 1)[0].configuration
    as_many, more = predict(largest, configuration, known), predict(larger, configuration, known)
    assert more.read_ns.expected == pytest.approx(as_many.read_ns.expected, rel=1e-6)
    assert more.peak_bytes.expected == pytest.approx(1000 * as_many.peak_bytes.expected, rel=1e-6)


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"^rows: are none"):
        fit([], "nothing")
    with pytest.raises(InputError, match=r"^rows\[0\].read_ns: is not above 0"):
        fit([replace(rows(0.0, 1)[0], read_ns=0.0)], "zero")
    with pytest.raises(InputError, match=r"^structure: was never measured"):
        predict(EASY, HashTable(), fit(rows(0.0, 3), "logs alone"))
    with pytest.raises(InputError, match=r"^structure: was never measured"):
        predict(EASY, GappedArray(), read_coefficients({**write_coefficients(shipped()), "lines": {}}))
    with pytest.raises(InputError, match=r"^schema"):
        read_coefficients({"schema": "another"})
    with pytest.raises(InputError, match=r"^lines"):
        read_coefficients({**write_coefficients(shipped()), "lines": {"hash-table": {"read_ns": {}}}})
