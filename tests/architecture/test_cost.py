"""What the tests may cost, held against the figures recorded in ``tests/cpu_seconds.json``: no clock runs here.

After adding or changing tests: ``pytest PATHS --record-cpu-seconds``, best on an idle machine.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.cpu_seconds import SLOW_FROM_S, FileCost, kind_of, recorded

# Of two idle cores: four minutes for the fast core and 25 for all, less the share of a kind to come.
FAST_CORE_S = 2 * 4 * 60
ALL_S = 2 * 25 * 60
KINDS_TO_COME = 1
# A kind's share of each, in processor seconds. The two that all the house was built with have larger ones; placement
# has two executors, and training compiles what it tries.
FAST_SHARE_S, SHARE_S = 20, 120
ELDER_FAST_SHARE_S = {"memory": 130, "collective": 100}
LARGER_FAST_SHARE_S = {**ELDER_FAST_SHARE_S, "placement": 30, "training": 40}
# A machine that was busy when they were recorded counts more processor seconds for the same work.
ALLOWANCE = 1.5
ROWS = recorded()


def by_kind() -> dict[str, list[FileCost]]:
    kinds = defaultdict(list)
    for path, row in ROWS.items():
        kinds[kind_of(path)].append(row)
    del kinds["house"]
    return kinds


def test_what_is_recorded_leaves_room_for_kinds_to_come() -> None:
    fast = sum(row.fast_s for row in ROWS.values())
    every = fast + sum(row.slow_s for row in ROWS.values())
    assert fast <= ALLOWANCE * (FAST_CORE_S - KINDS_TO_COME * FAST_SHARE_S)
    assert every <= ALLOWANCE * (ALL_S - KINDS_TO_COME * SHARE_S)


@pytest.mark.parametrize(("kind", "rows"), by_kind().items())
def test_a_kind_keeps_to_its_share(kind: str, rows: list[FileCost]) -> None:
    fast = sum(row.fast_s for row in rows)
    assert fast <= ALLOWANCE * LARGER_FAST_SHARE_S.get(kind, FAST_SHARE_S)
    assert kind in ELDER_FAST_SHARE_S or fast + sum(row.slow_s for row in rows) <= ALLOWANCE * SHARE_S


@pytest.mark.parametrize("path", ROWS)
def test_what_takes_long_is_marked_slow(path: str) -> None:
    assert ROWS[path].dearest_fast_s <= ALLOWANCE * SLOW_FROM_S
