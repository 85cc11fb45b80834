"""Steps on shares over gloo: every redistribution, and fifty random plans, beside one device."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.executor.collective.worlds import reports
from tests.executor.partition import split_scenarios


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2,), (2, 2), (4,)], ids=str)
def test_shares_train_as_one_device_does(sizes: tuple[int, ...], tmp_path: Path) -> None:
    ranks = 1
    for size in sizes:
        ranks *= size
    scenarios = {
        "redistributions": partial(split_scenarios.every_redistribution, sizes),
        "plans": partial(split_scenarios.random_plans_train_alike, sizes),
    }
    assert reports(scenarios, tmp_path, ranks) == {name: [""] * ranks for name in scenarios}
