"""What redistributions cost: bytes against counting elements one by one, times against collectives by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.models.partition.placements import TERM, WHOLE, Placement, code, divides, part_of, possible
from loadmaster.models.partition.problem import Axis
from loadmaster.models.partition.traffic import Traffic
from tests.models.partition.instances import axes

Element = tuple[int, ...]


def held_by(shape: tuple[int, ...], placement: Placement, mesh: tuple[Axis, ...], place: Element) -> set[Element]:
    """The elements of one worker, found one by one: its share of every dimension, axis after axis."""
    ranges = [range(extent) for extent in shape]
    for part, axis, at in zip(placement, mesh, place, strict=True):
        if part >= 0:
            weights = axis.weights or (1,) * axis.size
            ends = [len(ranges[part]) * sum(weights[:n]) // sum(weights) for n in range(axis.size + 1)]
            ranges[part] = ranges[part][ends[at] : ends[at + 1]]
    return set(itertools.product(*ranges))


def counted(shape: tuple[int, ...], mesh: tuple[Axis, ...], held: Placement, needed: Placement) -> float:
    """Elements that all workers receive, worker by worker, term by term."""
    added = [n for n, (a, b) in enumerate(zip(held, needed, strict=True)) if a == TERM and b != TERM]
    alike = math.prod(mesh[n].size for n in added if needed[n] == WHOLE)
    received = 0.0
    for place in itertools.product(*(range(axis.size) for axis in mesh)):
        wanted = held_by(shape, needed, mesh, place)
        own = held_by(shape, held, mesh, place)
        terms = math.prod(mesh[n].size for n in added)
        lacking = terms * len(wanted) - len(wanted & own)
        received += lacking / alike + len(wanted) * (1 - 1 / alike)
    return received


@given(st.data())
def test_bytes_are_elements_counted_one_by_one(data: st.DataObject) -> None:
    mesh = axes(*data.draw(st.lists(st.sampled_from([2, 3, (2, 1), (1, 3), (2, 4, 2)]), min_size=1, max_size=3)))
    shape = tuple(data.draw(st.lists(st.sampled_from([12, 16, 18]), min_size=1, max_size=2)))
    parts = st.tuples(*[st.sampled_from([*range(len(shape)), WHOLE, TERM])] * len(mesh))
    units = [axis.units for axis in mesh]
    held, needed = (data.draw(parts.filter(lambda p: divides(shape, p, units))) for _ in range(2))
    found = Traffic(mesh).received_bytes(shape, 2, [held], [needed])[0, 0]
    if any(b == TERM and a != TERM for a, b in zip(held, needed, strict=True)):
        assert found == math.inf
    else:
        assert found == pytest.approx(2 * counted(shape, mesh, held, needed))


def test_halos_are_rows_of_the_neighbours() -> None:
    traffic = Traffic(axes(4))
    # Inner workers need one row of each neighbour, the outer ones of one.
    assert traffic.received_bytes((8, 5), 1, [(0,)], [(0,)], ((0, 1, 1),))[0, 0] == 6 * 5
    assert traffic.received_bytes((8, 5), 1, [(0,)], [(0,)], ((0, 0, 3),))[0, 0] == (3 + 3 + 2 + 0) * 5


@pytest.mark.parametrize(
    ("held", "needed", "time_us"),
    [
        ("S0", "S0", 0.0),
        ("R", "S0", 0.0),
        ("S0", "R", 5 + 3 * 1000 / 1000),  # each receives three shares of 1,000 bytes at 1,000 bytes a microsecond
        ("S0", "S1", 5 + 3 * 250 / 1000),
        ("P", "S1", 5 + 3 * 1000 / 1000),
        ("P", "R", 2 * (5 + 3 * 1000 / 1000)),
        ("R", "P", math.inf),
    ],
)
def test_collectives_along_one_axis(held: str, needed: str, time_us: float) -> None:
    traffic = Traffic((Axis("gpu", 4, 1.0, 5.0),))
    assert traffic.time_us((100, 40), 1, [(code(held),)], [(code(needed),)])[0, 0] == pytest.approx(time_us)


@pytest.mark.parametrize(
    ("held", "needed", "time_us"),
    [
        # 4,000 bytes at 1,000 a microsecond: shares of 2,000, 1,000 and 1,000. Two others are gathered, each as if it
        # were as long as the largest; so are sums scattered.
        ("S0", "R", 5 + 2 * 2000 / 1000),
        ("P", "S1", 5 + 2 * 2000 / 1000),
        # The first one sends half of its rows, the others three quarters of theirs; as much is received.
        ("S0", "S1", 5 + max(2000 / 2, 1000 * 3 / 4) / 1000),
        ("P", "R", 2 * (5 + 2 / 3 * 4000 / 1000)),
        ("R", "S0", 0.0),
    ],
)
def test_collectives_along_an_axis_of_unequal_shares(held: str, needed: str, time_us: float) -> None:
    traffic = Traffic((Axis("gpu", 3, 1.0, 5.0, weights=(2, 1, 1)),))
    assert traffic.time_us((100, 40), 1, [(code(held),)], [(code(needed),)])[0, 0] == pytest.approx(time_us)


def test_the_last_axis_leaves_first() -> None:
    """Rows over both axes of 2 x 4: gathered along the second, then along the first; kept rows are the worker's own."""
    traffic = Traffic((Axis("slow", 2, 1.0), Axis("fast", 4, 10.0)))
    rows = traffic.time_us((8000,), 1, [(0, 0)], [(0, WHOLE), (WHOLE, 0), (WHOLE, WHOLE)])[0]
    gather_us = [3 * 1000 / 10_000, 1 * 4000 / 1000]
    assert rows == pytest.approx([gather_us[0], sum(gather_us), sum(gather_us)])


@given(st.sampled_from([(8, 12), (24,), (4, 4, 8)]), st.sampled_from([(2,), (2, 2), (4, 2), ((3, 1), 2)]))
def test_paths_are_no_longer_than_a_detour(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    traffic = Traffic(axes(*sizes, latency_us=0.3))
    placements = possible(shape, traffic.mesh.units, replicas=True)
    times = traffic.time_us(shape, 4, placements, placements)
    for via in range(len(placements)):
        assert (times <= times[:, via, None] + times[None, via, :] + 1e-9).all()
    assert (times >= 0).all() and (times.diagonal() == 0).all()


def test_parts_are_written_as_numbers_and_back() -> None:
    assert [part_of(code(part)) for part in ("S0", "S7", "R", "P")] == ["S0", "S7", "R", "P"]


def test_without_replicas_only_the_most_divided_are_left() -> None:
    assert possible((4, 6), (2, 2), replicas=False) == ((0, 0), (0, 1), (1, 0))
    assert possible((3, 5), (2,), replicas=False) == ((WHOLE,),)
    assert possible((), (2,), replicas=False) == ((WHOLE,),)
