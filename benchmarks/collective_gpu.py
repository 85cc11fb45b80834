"""Planned collectives against NCCL and torch's own symmetric-memory kernels, in one run, interleaved.

    torchrun --nproc-per-node 8 -m benchmarks.collective_gpu --wall 420
    torchrun --nproc-per-node 2 -m benchmarks.collective_gpu --smoke        # a minute: is everything right?

``loadmaster`` is what a program gets after ``use``, which measures first and leaves to NCCL what that is faster at: a
call of ``torch.distributed``, as ``nccl`` is on the group below; ``shared`` is that on memory of ``Installed.empty``;
``engine`` is the kernel launched directly. Before a size is timed, results are held against fp32 sums made apart, bit
by bit, and against themselves in three runs. A sample is the mean of some calls one after another between two events
(or of the same calls in a CUDA graph), on the slowest rank; the host's time is that of issuing them. Methods take
turns, and a row is the median and quartiles of samples. Sizes are in order of importance: small ones of all collectives
first. ``--wall`` ends a run in time to write.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL = [KIB << k for k in range(11)]
LARGE = [MIB << k for k in (6, 8, 10, 2, 4, 1, 3, 5, 7, 9)]
DTYPES = ("bfloat16", "float16", "float32")
MODES = ("eager", "graph")
TIMEOUT_S = 5.0  # that a kernel waits for a peer
# torch's own kernels, in symmetric memory and with copies into it and out of it.
TORCHS = {"torch": ("one_shot", "two_shot"), "copied_torch": ("one_shot_copied", "two_shot_copied")}


def calls_per_sample(size_bytes: int) -> int:
    """Number of calls per sample: a few hundred microseconds, at least two calls."""
    return 20 if size_bytes <= MIB else 8 if size_bytes <= 16 * MIB else 2


def engines(ranks: int, collectives: list[str]) -> dict[str, Any]:
    """Build an engine of the direct plan for every collective."""
    import torch.distributed as dist

    from benchmarks.collective.plans import direct
    from loadmaster.executor.collective.fused.arena import Capacity
    from loadmaster.executor.collective.fused.engine import FusedEngine

    group, capacity = dist.distributed_c10d._get_default_group(), Capacity(simple_bytes=256 * MIB)
    return {
        name: FusedEngine(*direct(name, ranks), group, capacity=capacity, timeout_s=TIMEOUT_S)  # type: ignore[arg-type]
        for name in collectives
    }


def verify(case: Any, engine: Any) -> str | None:
    """Run a case three times; tell what is wrong, or None."""
    import torch

    from benchmarks.collective.calls import fused
    from loadmaster.models.collective.lowering import messages_of

    given, expected, call = case.input_of(case.rank), case.expected(), fused(case, engine)
    outputs = []
    for _ in range(3 if case.size_bytes <= 64 * MIB else 2):
        output = case.empty()
        call(output, given)
        engine.check()
        outputs.append(output)
    if case.collective == "allreduce":
        output = given.clone()
        call(output, output)
        engine.check()
        outputs.append(output)
    if not all(torch.equal(outputs[0], other) for other in outputs[1:]):
        return "differs from run to run"
    algorithm = engine.plan.algorithm_for(case.size_bytes)
    # Sums that are passed on are rounded on the way.
    rounded = any(m.combines and m.level for m in messages_of(algorithm.sends))
    if torch.equal(outputs[0], expected):
        return None
    if rounded and torch.allclose(outputs[0].float(), expected.float(), rtol=0.05, atol=0.05):
        return None
    wrong = (outputs[0] != expected).nonzero().flatten()
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {len(expected)} elements are wrong, the first at {first}: {float(outputs[0][first])} for "
        f"{float(expected[first])}, the last at {int(wrong[-1])}"
    )


def wrong_on_shared(case: Any, planned: Any, shared: Any) -> str | None:
    """Run a call on shared memory; tell what is wrong, or None."""
    import torch

    from benchmarks.collective.calls import called

    call, output = called(case, case.input_of(case.rank), planned, shared)
    call()
    torch.cuda.synchronize()
    return None if torch.equal(output, case.expected()) else "it gives something else"


def everywhere(problem: str | None) -> list[str]:
    """Gather what any rank found wrong."""
    import torch.distributed as dist

    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, problem)
    return [f"rank {rank}: {one}" for rank, one in enumerate(said) if one]


def graph_of(call: Callable[[], Any], count: int) -> Any:
    """Capture calls as one CUDA graph."""
    import torch
    import torch.distributed as dist

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            call()
    torch.cuda.synchronize()
    dist.barrier()
    return graph


def sample(play: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Time all repeats on this rank in microseconds: until the GPU is done, and of the host."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.distributed.barrier()
    torch.cuda.synchronize()
    start.record()
    began = time.perf_counter()
    for _ in range(repeats):
        play()
    host_us = (time.perf_counter() - began) * 1e6
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3, host_us


def measure(
    samples: int, case: Any, engine: Any, planned: Any, inner: Any, shared: Any
) -> dict[str, dict[str, dict[str, float]]]:
    """Median and quartiles in us per mode and method; eager, also how long the host is busy with a call."""
    import torch
    import torch.distributed as dist

    from benchmarks.collective.calls import methods

    count = calls_per_sample(case.size_bytes)
    plays: dict[tuple[str, str], tuple[Callable[[], Any], int]] = {}
    for name, call in methods(case, engine, planned, inner, shared):
        call()
        torch.cuda.synchronize()
        plays["eager", name] = (call, count)
        plays["graph", name] = (graph_of(call, count).replay, 1)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in plays}
    for turn in range(samples + 2):
        for key, (play, repeats) in plays.items():
            spent = sample(play, repeats)
            if turn >= 2:
                times[key].append(spent)
    engine.check()
    slowest = torch.tensor([times[key] for key in plays], dtype=torch.float64, device=case.device) / count
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    found: dict[str, dict[str, dict[str, float]]] = {mode: {} for mode in MODES}
    for (mode, name), of_key in zip(plays, slowest.tolist(), strict=True):
        low, middle, high = statistics.quantiles([us for us, _ in of_key], n=4)
        found[mode][name] = {"median_us": middle, "q1_us": low, "q3_us": high}
        if mode == "eager":
            found[mode][name]["host_us"] = statistics.median(host_us for _, host_us in of_key)
    return found


def row_of(case: Any, engine: Any, found: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Build a row with its ratios, and the form of the call."""
    algorithm = engine.plan.algorithm_for(case.size_bytes)
    row: dict[str, Any] = {
        "collective": case.collective,
        "size_bytes": case.size_bytes,
        "dtype": str(case.dtype).removeprefix("torch."),
        "plan": engine.plan.name,
        "form": algorithm.form,
        **found,
    }
    for mode in MODES:
        ours = found[mode]["loadmaster"]["median_us"]
        row[f"{mode}_nccl_over_loadmaster"] = found[mode]["nccl"]["median_us"] / ours
        for what, names in TORCHS.items():
            torchs = [of["median_us"] for name, of in found[mode].items() if name in names]
            if torchs:
                row[f"{mode}_{what}_over_loadmaster"] = min(torchs) / ours
    return row


def runs(switched: Any, case: Any) -> str:
    """Tell which group runs a call after ``use``: "planned" or "inner"."""
    known = switched.calibration
    return "planned" if known is None or known.wins(case.collective, case.size_bytes) else "inner"


def describe(row: dict[str, Any]) -> str:
    host = "/".join(f"{row['eager'][name]['host_us']:.0f}" for name in ("loadmaster", "nccl"))
    line = f"{row['collective']:15}{row['size_bytes']:>11} {row['runs']:7} host {host} us "
    for mode in MODES:
        times = "  ".join(f"{name} {of['median_us']:.1f}" for name, of in row[mode].items())
        line += f"| {mode} {times} (x{row[f'{mode}_nccl_over_loadmaster']:.2f}) "
    return line


def order(collectives: list[str], largest: int, smallest: int) -> list[tuple[str, int]]:
    """List cases (collective, bytes), the most important first."""
    found = [(c, s) for s in (64 * KIB, 8 * KIB, KIB, MIB, 256 * KIB, *SMALL) for c in collectives]
    found += [(c, s) for s in (256 * MIB, 16 * MIB, GIB, *LARGE) for c in collectives]
    return [(c, s) for c, s in dict.fromkeys(found) if smallest <= s <= largest]


def smoke(made: dict[str, Any], rank: int, ranks: int, device: Any, say: Callable[[str], None]) -> int:
    """Check every collective at odd and even sizes in all types, then under a graph; return how many are wrong."""
    import torch

    from benchmarks.collective.calls import Case, fused

    wrong = 0
    for collective, engine in made.items():
        for size in (KIB, 16 * KIB, 256 * KIB, MIB + 4 * KIB, 24 * MIB):
            for dtype in DTYPES if size <= 16 * KIB else DTYPES[:1]:
                # A few elements more, so that blocks are neither aligned nor whole vectors.
                for more in (0, 3 * ranks * 4):
                    case = Case(collective, size + more, getattr(torch, dtype), rank, ranks, device)  # type: ignore[arg-type]
                    found = everywhere(verify(case, engine))
                    wrong += bool(found)
                    if found:
                        say(f"WRONG {collective} {size + more} bytes {dtype}: " + "; ".join(found))
        case = Case(collective, 64 * KIB, torch.bfloat16, rank, ranks, device)  # type: ignore[arg-type]
        given, output, call = case.input_of(rank), case.empty(), fused(case, engine)
        graph = graph_of(lambda call=call, o=output, i=given: call(o, i), 5)
        output.fill_(0)
        for _ in range(20):
            graph.replay()
        engine.check()
        found = everywhere(None if torch.equal(output, case.expected()) else "a replayed graph gives something else")
        wrong += bool(found)
        say(f"{collective}: {'; '.join(found) or 'graph replays are right'}; {wrong} wrong so far")
    return wrong


def everyone_late(began: float, wall: float) -> bool:
    """Return whether time is up, on the first rank's clock."""
    import torch.distributed as dist

    late: list[Any] = [time.perf_counter() - began > wall]
    dist.broadcast_object_list(late, src=0)
    return bool(late[0])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--collectives", nargs="+", default=["allreduce", "allgather", "reduce_scatter", "alltoall"])
    p.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    p.add_argument("--samples", type=int, default=9)
    p.add_argument("--smallest", type=int, default=KIB)
    p.add_argument("--largest", type=int, default=GIB)
    p.add_argument("--wall", type=float, default=float("inf"), help="seconds after which nothing new is begun")
    p.add_argument("--smoke", action="store_true", help="only see whether everything is right")
    a = p.parse_args()
    began = time.perf_counter()

    import torch
    import torch.distributed as dist

    from benchmarks.collective.calls import Case
    from benchmarks.record import write

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)

    def say(text: str) -> None:
        if rank == 0:
            print(f"{time.perf_counter() - began:6.1f} s  {text}", flush=True)

    say(f"{ranks} ranks, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
    made = engines(ranks, a.collectives)
    say("kernels built, arenas shared")
    if a.smoke:
        wrong = smoke(made, rank, ranks, device, say)
        say("ALL RIGHT" if not wrong else f"{wrong} WRONG")
        dist.destroy_process_group()
        sys.exit(1 if wrong else 0)
    from loadmaster.executor.collective import use

    switched = use(
        [(engine.problem, engine.plan) for engine in made.values()],
        engines=[lambda problem, plan, group, place: made[problem.collective]],
    )
    say("switched on")
    if rank == 0:
        print(switched.calibration)
    shared = switched.empty(a.largest, dtype=torch.uint8)
    rows = []
    left = order(a.collectives, a.largest, a.smallest)
    while left:
        if everyone_late(began, a.wall):
            break
        collective, size = left.pop(0)
        case = Case(collective, size, getattr(torch, a.dtype), rank, ranks, device)  # type: ignore[arg-type]
        wrong_here = everywhere(verify(case, made[collective]))
        if wrong_here:
            say(f"WRONG {collective} {size}: " + "; ".join(wrong_here))
            rows.append({"collective": collective, "size_bytes": size, "wrong": wrong_here})
            continue
        wrong_here = everywhere(wrong_on_shared(case, switched.group, shared))
        if wrong_here:
            say(f"WRONG {collective} {size} on shared memory: " + "; ".join(wrong_here))
            rows.append({"collective": collective, "size_bytes": size, "wrong": wrong_here})
            continue
        found = measure(a.samples, case, made[collective], switched.group, switched.inner, shared)
        rows.append({**row_of(case, made[collective], found), "runs": runs(switched, case), "right": True})
        say(describe(rows[-1]))
        torch.cuda.empty_cache()
    if rank == 0:
        command = ["torchrun", f"--nproc-per-node {ranks}", "-m benchmarks.collective_gpu", *sys.argv[1:]]
        rows.sort(key=lambda row: (a.collectives.index(row["collective"]), row["size_bytes"]))
        document = {"command": " ".join(command), "ranks": ranks, "samples": a.samples, "dtype": a.dtype, "rows": rows}
        print(write(f"collective_gpu_{ranks}", {**document, "left_out": left}))
        print(switched.stats(), "compiled" if switched.compiled else "through Python")
    switched.disable()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
