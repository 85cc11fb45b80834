"""How much of a forward pass is sent: the condition of the seed on small profiles, and against trying every answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.executor.placement.cache import tensor_cache, traffic
from loadmaster.executor.placement.cache.adaptive import Profile, last_sent, plan_for, plan_to_keep
from loadmaster.executor.placement.cache.stats import CacheStats
from loadmaster.executor.placement.cache.tape import Stopwatch
from tests.executor.placement.cache.small_models import LEAST, blocks, expect_equal, gradients


def feasible(profile: Profile, m: int, write: float, read: float) -> bool:
    """Whether the first m tensors can be sent, said as plainly as possible."""
    sizes, at_s, end_s = profile.sizes, profile.at_s, profile.forward_s
    # The link is never idle after it began with some tensor j for the last time.
    stored = all(at_s[j] + sum(sizes[j:m]) / write <= end_s for j in range(m))
    return stored and all(sum(sizes[j:m]) <= read * 2 * (end_s - at_s[j]) for j in range(m))


@given(
    rows=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10)), max_size=12),
    tail=st.integers(0, 10),
    # Powers of two: sums of quotients are exact then, and equal is equal.
    write=st.sampled_from([1, 2, 4, 8, 16]),
    read=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_as_much_as_the_conditions_allow(rows: list[tuple[int, int]], tail: int, write: int, read: int) -> None:
    at_s, now_s = [], 0.0
    for n, (_, waited) in enumerate(rows):
        now_s += waited if n else 0
        at_s.append(now_s)
    profile = Profile(tuple(size for size, _ in rows), tuple(at_s), now_s + tail)
    found = last_sent(profile, write, read)
    assert found == max(m for m in range(len(rows) + 1) if feasible(profile, m, write, read))
    planned = plan_for(profile, write, read, window_bytes=0)
    if 10 * sum(profile.sizes[:found]) < sum(profile.sizes):
        found = 0
    assert planned.sent == found and planned.tensors == len(rows) and planned.fits(sum(profile.sizes))
    sent = sum(profile.sizes[:found])
    assert all(0 <= left <= sent for left in planned.backlog)
    # Read one after the other, each from when it is due, all are there when they are needed. What is due before the
    # backward pass needs its first tensor is asked for then.
    needed_s = [2 * (profile.forward_s - at) for at in at_s]
    over_s = 0.0
    for j in reversed(range(found)):
        asked_s = min(needed_s[n] for n in range(len(rows)) if planned.due[n] >= sum(profile.sizes[j:found]))
        over_s = max(over_s, asked_s) + profile.sizes[j] / read
        assert over_s <= needed_s[j] + needed_s[-1] + 1e-9


def test_the_example_of_four_layers() -> None:
    """100 bytes a second from 0 s on, four layers of a second: the backward pass reaches layer m at 4 + 2 (4 - m) s."""
    profile = Profile((100,) * 4, (1.0, 2.0, 3.0, 4.0), 4.0)
    assert last_sent(profile, 100, 100) == 3
    assert last_sent(profile, 1e9, 1e9) == 3  # what the backward pass needs first cannot be anywhere else
    assert last_sent(profile, 40, 100) == 1
    assert last_sent(profile, 100, 10) == 0
    planned = plan_for(profile, 50, 100, window_bytes=60)
    assert planned.backlog == (100, 50, 0, 0) and planned.due == (100, 100, 0, 0)
    # Reading begins 5, 3 and 1 s after the forward pass; the backward pass is at the layers after 6, 4, 2 and 0 s.
    assert plan_for(profile, 100, 100, window_bytes=0).due == (300, 300, 200, 100)
    assert plan_for(profile, 50, 100, window_bytes=61).sent == 0  # 39 of 400 bytes are hardly anything


def test_a_tail_of_so_many_bytes() -> None:
    assert plan_to_keep([10, 20, 30], 0).sent == 3
    assert plan_to_keep([10, 20, 30], 49).sent == 2
    assert plan_to_keep([10, 20, 30], 50).sent == 1
    assert plan_to_keep([10, 20, 30], 1000).sent == 0


def test_waits_are_no_part_of_a_forward_pass() -> None:
    watch = Stopwatch()
    watch.saved(7, 10.0)
    watch.waited(10.0, 14.0)
    watch.saved(8, 15.0)
    watch.waited(15.0, 16.0)
    watch.ended(18.0)
    watch.saved(9, 20.0)  # of the backward pass
    assert watch.profile() == Profile((7, 8), (0.0, 1.0), 3.0)
    assert Stopwatch().profile() is None


@pytest.mark.parametrize(
    ("rate", "sent"), [(1e12, {25}), (700.0, set(range(1, 25))), (1.0, {0})], ids=["fast", "between", "slow"]
)
def test_a_cache_finds_it_by_itself(rate: float, sent: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a clock of its own: a tensor is saved every second, and the place writes and reads at a rate."""
    ticks = iter(range(1_000_000))
    for module in (tensor_cache, traffic):
        monkeypatch.setattr(module, "mark", lambda device: float(next(ticks)))
    monkeypatch.setattr(tensor_cache, "rates", lambda done: (rate, rate))
    model = blocks()
    plain = gradients(model)
    cache = tensor_cache.TensorCache(model, "host", min_bytes=LEAST, window=0)
    for _ in range(4):
        expect_equal(gradients(model, cache), plain)
    found = cache.stats().sent
    assert found is not None and found[0] in sent and found[1] == 25
    # A longer pass is another one: it is timed again, and planned for.
    longer = blocks(5)
    plain = gradients(longer)
    for _ in range(3):
        expect_equal(gradients(longer, cache), plain)
    found = cache.stats().sent
    assert found is not None and found[1] > 25


def test_figures_of_a_disk() -> None:
    zero = dict.fromkeys(CacheStats.__dataclass_fields__, 0)
    stats = CacheStats(**{**zero, "sent": (3, 4), "notes": {"page_cache": "used"}, "written_bytes": 1 << 30})
    assert stats.disk_life_s(65.4e15, 2.0) == 65.4e15 * 2.0 / (1 << 30)
    assert CacheStats(**{**zero, "notes": {}}).disk_life_s(1.0, 1.0) == float("inf")
    said = str(stats)
    assert "3 of 4 tensors" in said and "page cache: used" in said and "written: 1.00 GiB" in said
