"""However long a compiled function is, those that it calls need no memory of their own."""

from __future__ import annotations

import resource
import sys
import threading

import pytest

from loadmaster.executor.memory.run.compiled_plans import with_room

CALLS = 200


def function_of(names: int):
    """A function with so many local names, which calls a short one again and again."""
    lines = [f"    a{i} = None" for i in range(names)]
    made: dict[str, object] = {}
    exec("\n".join(["def run(calls):", *lines, "    for call in calls: call()"]), made)
    return made["run"]


def in_a_thread(call):
    """A fresh one, whose frames lie alike each time."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def page_faults(run) -> int:
    def short() -> None:
        pass

    calls = [short] * CALLS
    run(calls)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    run(calls)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the page faults of a thread")
def test_no_call_gets_memory_of_its_own():
    """Of a length or two each call does without: some seven names decide."""
    lengths = range(1, 2100, 5)
    assert max(in_a_thread(lambda: [page_faults(with_room(function_of(n))) for n in lengths])) < CALLS / 2


def test_arguments_and_results_pass_through():
    arguments = [1, 2]

    def run(given):
        total = sum(given)
        given.clear()
        return total

    roomy = with_room(run)
    assert roomy(arguments) == 3 and arguments == []
    assert roomy._boxed_call
