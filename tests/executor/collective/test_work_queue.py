"""Work under way: in the thread on a CPU, on the stream of a GPU."""

from __future__ import annotations

import threading

import pytest
import torch

from loadmaster.executor.collective.calls import WorkQueue


@pytest.fixture
def queue():
    made = WorkQueue("test")
    yield made
    made.close()


def test_jobs_run_in_order_beside_the_caller(queue):
    x, go = torch.zeros(3), threading.Event()
    first = queue.start(lambda: (go.wait(), x.add_(1)), [x], [x], True)
    second = queue.start(lambda: x.mul_(5), [x], [x], True)
    assert not first.is_completed() and x[0] == 0
    future = second.get_future()
    go.set()
    assert torch.equal(future.wait()[0], torch.full((3,), 5.0))
    queue.drain()
    assert first.is_completed() and first.wait()


def test_what_goes_wrong_is_raised_by_every_way_to_wait_and_the_next_job_runs(queue):
    x = torch.zeros(3)

    def fails():
        raise ValueError("no such luck")

    work = queue.start(fails, [x], [x], False)
    for wait in (work.wait, work.synchronize, work.block_current_stream):
        with pytest.raises(ValueError, match="no such luck"):
            wait()
    # In C++ it has no type, but is an error, not a value.
    with pytest.raises(RuntimeError, match="no such luck"):
        work.get_future().then(lambda future: future.value()).wait()
    queue.start(lambda: x.add_(1), [x], [x], False).wait()
    assert x[0] == 1


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("wait", ["wait", "synchronize", "block_current_stream", "future", "settle"])
    @pytest.mark.parametrize("later", [True, False])
    def test_what_follows_on_any_stream_comes_after(self, queue, wait, later):
        x = torch.zeros(1 << 20, device="cuda")
        x.add_(0)  # the first call of a kernel loads it, and may wait for all that runs
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work = queue.start(lambda: (torch.cuda._sleep(1 << 28), x.add_(1)), [x], [x], later)
            if later:
                assert not work.is_completed()
            if wait == "future":
                assert work.get_future().wait()[0] is not None
            elif wait == "settle":
                queue.drain()
            else:
                getattr(work, wait)()
            seen = x.clone()
        side.synchronize()
        assert bool((seen == 1).all()) and work.is_completed()

    def test_memory_given_back_meanwhile_is_not_handed_out(self, queue):
        x, total = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
        work = queue.start(lambda x=x: (torch.cuda._sleep(1 << 28), total.add_(x)), [x, total], [total], True)
        del x
        for _ in range(4):
            torch.full((1 << 20,), 7.0, device="cuda")
        work.wait()
        assert bool((total == 1).all())

    def test_a_graph_takes_it_in(self, queue):
        x = torch.zeros(16, device="cuda")
        queue.start(lambda: x.add_(1), [x], [x], True).wait()
        torch.cuda.synchronize()
        x.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            queue.start(lambda: x.add_(1), [x], [x], True).wait()
            queue.start(lambda: x.mul_(2), [x], [x], False).wait()
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert bool((x == 14).all())
