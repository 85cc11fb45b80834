"""An independent look at what the simulator says it did: every line of its log, with the contents of every block."""

from __future__ import annotations

import pytest

from loadmaster.models.placement.policies.simulator import Log
from loadmaster.models.placement.problem import PlacementProblem


def hold(problem: PlacementProblem, log: Log, budget_bytes: int, invalidate: bool) -> None:
    """Assert that no operator ran without what it reads, and that memory and links were never overdrawn.

    ``written`` counts the writes of each block, ``device`` and ``tier`` hold the count that each copy is of; None is
    a copy that means nothing.
    """
    sizes = [b.size_bytes for b in problem.blocks]
    (tier_of_all,) = problem.tiers
    written = [0] * len(sizes)
    device: dict[int, int | None] = {}
    tier: list[int | None] = [0] * len(sizes)
    under_way: dict[str, tuple[int, float, int | None]] = {}
    clock, running, expected = 0.0, None, 0
    for at_us, what, of in log.events:
        assert at_us >= clock
        clock = at_us
        if what == "run":
            operator = problem.operators[of]
            assert of == expected % len(problem.operators) and running is None
            loading = under_way.get("load")
            assert loading is None or loading[0] not in operator.blocks
            assert all(b in device for b in operator.blocks)
            assert all(device[b] == written[b] for b in operator.reads)
            running, since = of, at_us
        elif what == "ran":
            operator = problem.operators[of]
            assert running == of and at_us == pytest.approx(since + operator.time_us)
            for b in operator.writes:
                written[b] += 1
                device[b] = written[b]
            running, expected = None, expected + 1
        elif what == "load":
            assert "load" not in under_way and of not in device and tier[of] == written[of]
            device[of] = None
            under_way["load"] = (of, at_us, tier[of])
        elif what == "loaded":
            block, start, contents = under_way.pop("load")
            assert block == of and at_us == pytest.approx(start + tier_of_all.load_us(sizes[of]))
            device[of] = contents
        elif what == "store":
            assert "store" not in under_way and of in device
            under_way["store"] = (of, at_us, device[of])
        elif what == "stored":
            block, start, contents = under_way.pop("store")
            assert block == of and at_us == pytest.approx(start + tier_of_all.store_us(sizes[of]))
            # What was written while it was read is torn.
            tier[of] = contents if contents == device.get(of, contents) else None
        elif what == "make":
            assert of not in device
            device[of] = None
        else:
            assert all(block != of for block, _, _ in under_way.values())
            if what == "dead":
                assert invalidate and _next_use_writes_whole(problem, expected, of)
            else:
                assert tier[of] == written[of]
            del device[of]
        workspace = 0 if running is None else problem.operators[running].workspace_bytes
        assert sum(sizes[b] for b in device) + workspace <= budget_bytes
    assert expected == log.steps * len(problem.operators)


def _next_use_writes_whole(problem: PlacementProblem, position: int, block: int) -> bool:
    count = len(problem.operators)
    later = [problem.operators[(position + n) % count] for n in range(count)]
    following = next(o for o in later if block in o.blocks)
    return block not in following.reads
