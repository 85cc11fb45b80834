"""What a picture says of results that travel."""

from __future__ import annotations

from loadmaster.api.report.view import view
from tests.models.memory.test_checked_journeys import LINK, travelling
from tests.models.memory.test_memory_checker import PLENTY, a_plan, three_operators


def test_a_result_that_is_sent_is_there_until_it_is_gone_and_from_its_arrival_on() -> None:
    problem = three_operators(host_link=LINK)
    # Forward 0 runs from 0 to 5 us and is read until 12; the loss runs until 13, or from 16 on if it has to wait.
    for gone_before, end_us in (((), 13.0), ((2,), 12.0)):
        seen = view(problem, a_plan(problem, travelling(2, gone_before), PLENTY))
        sent = seen.tensors[0]
        assert sent.fate == "offloaded"
        (first, second) = sent.resident
        assert first == (0.0, end_us)
        arrival = next(e for e in seen.events if e.what == "backward" and e.operator == 2)
        assert second == (arrival.start_us, arrival.start_us + arrival.duration_us)
