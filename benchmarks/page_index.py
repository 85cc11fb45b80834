"""Stories of ``docs/benchmarks.md`` about ``index`` and about the service."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from benchmarks.drawing import Result
from benchmarks.page_rows import requests
from benchmarks.sections import none_or, plot, section, span, table

_MIXES = {1.0: "inserts alone", 0.85: "85 % inserts", 0.15: "15 % inserts", 0.0: "lookups alone"}


def index(results: Mapping[str, Result]) -> Iterator[str]:
    """Tell about planned structures of shards, compared with the gapped array of ALEX and with the best of all."""
    workloads, planning = results["index_workloads"], results["index_planning"]
    rows, python = workloads["rows"], results["index_python"]
    unseen = results["index_predictor"]["left_out_distribution"]["line"]["any"]
    least = min(rows, key=lambda row: float(row["times_peer"]))
    without = statistics.mean(row["times_best_without_trials"] for row in planning["rows"])
    cells = [
        [name, *(f"{r['planned_mops']:.2f} ({r['times_peer']:.2f} x)" for r in rows if r["distribution"] == name)]
        for name in dict.fromkeys(row["distribution"] for row in rows)
    ]
    logs = sum(row["planned"].startswith("fragmented-log") for row in rows)
    yield section(
        "An index of keys",
        "A plan of `index` says which structure holds each shard of an index. The rival is this package's gapped array "
        f"with the cost model of ALEX, on the same pages. {rows[0]['keys']:,} keys of 64 bits are loaded, and "
        f"{rows[0]['operations']:,} inserts and lookups follow in batches from Python. `text` are real keys, "
        f"{max(row['keys'] for row in rows if row['distribution'] == 'text'):,} at most.",
        f"**Not reached.** The gain is small where the rival is good: {least['times_peer']:.2f} times with "
        f"{least['distribution']} keys and {_MIXES[least['inserts']]}. Trials do not always find the best of "
        f"{planning['candidates']} candidates: on {len(planning['rows']) - planning['within_5_percent']} of "
        f"{len(planning['rows'])} shards the chosen one was over 5 % slower.",
        plot("index-workloads", "Operations a second by distribution and share of inserts: gapped array and planned"),
        table(f"millions of operations a second | {' | '.join(_MIXES.values())}", cells),
        f"Planned structures are {span(row['times_peer'] for row in rows)} times as fast as the gapped array (in "
        f"brackets), in {span(row['bytes_of_peer'] for row in rows)} of its bytes. {logs} of {len(rows)} are "
        f"fragmented logs. {planning['shards']} other shards are planned in {planning['planning_s']:.0f} s, trials "
        "included. There the chosen candidate takes "
        f"{planning['mean_times_best']:.2f} of the best one's time on average, and "
        f"{without:.2f} without trials. By predictions for distributions that the predictor never saw, it is "
        f"{1 + unseen['regret_mean']:.2f} on average, and {1 + unseen['regret_worst']:.2f} at worst of "
        f"{unseen['traces']} traces. A change of structure makes a write wait for "
        f"{max(row['planned_pause_ms'] for row in rows):.0f} ms at most in planned indexes, and for "
        f"{max(row['peer_pause_ms'] for row in rows):.0f} ms in the gapped array.",
        sources=[workloads, planning, results["index_predictor"]],
        level=2,
    )
    columns = ("lookups_mops", "inserts_mops", "bytes_per_key")
    yield section(
        "Batches from Python",
        f"Batches of {python['batch']:,} on one core: {python['keys']:,} uniform keys are looked up in random order, "
        "then as many new ones are inserted. Rivals run `list(map(tree.get, keys))` and `tree.update(pairs)`, with "
        "lists made before.",
        table(
            "millions a second | lookups | inserts | bytes a key",
            ([row["name"], *("" if row[of] is None else row[of] for of in columns)] for row in python["rows"]),
        ),
        sources=[python],
    )


def service(results: Mapping[str, Result]) -> Iterator[str]:
    """Tell about the service: latencies under load, spoilt requests, killed workers, the first plan."""
    load, fuzz, soak = (results[f"service_{of}"] for of in ("load", "fuzz", "soak_postgresql"))
    start, memory, streams = results["cold_start"], load["memory_of_the_server"], load["event_streams"]
    described, spoilt = fuzz["from_the_description"], fuzz["spoilt_problems"]
    wrong = len(described["wrong"]) + len(spoilt["wrong"])
    yield section(
        "Service",
        f"A server with SQLite on {load['machine']['cores']} cores. The same cores plan all the time and send the "
        "requests.",
        f"**Not reached.** While {streams['streams']} event streams open at once, a read takes "
        f"{streams['reads_meanwhile']['p99_ms']:.0f} ms (99 of 100), not {load['read']['p99_ms']:.1f} ms. "
        "The run with killed workers had `fsync` off, so it says nothing about a machine that loses power.",
        plot("service", "Latency of each request to the service: median, 99 of 100, longest"),
        table(
            "request | median, ms | 99 of 100, ms | longest, ms",
            (
                [what, *(float(found[key]) for key in ("p50_ms", "p99_ms", "max_ms"))]
                for what, found in requests(load).items()
            ),
        ),
        f"{none_or(load['submit']['refused'] + load['read']['refused']).capitalize()} of "
        f"{load['submit']['count'] + load['read']['count']:,} requests were refused, and {none_or(streams['broken'])} "
        f"of {streams['opened']} streams broke. The server takes "
        f"{memory['before_mib']:.0f} MiB before and {memory['after_mib']:.0f} MiB after {memory['requests']:,} "
        f"requests. {none_or(wrong).capitalize()} of {described['requests']:,} requests made from its description and "
        f"of {spoilt['asked']:,} spoilt problems got a wrong answer. With {soak['killed_workers']} workers and "
        f"{soak['killed_servers']} servers killed over PostgreSQL, {none_or(len(soak['wrong']))} of "
        f"{soak['asked']['jobs']:,} jobs went wrong. From an empty environment to the first plan over HTTP it takes "
        f"{start['total_s']:.0f} s.",
        sources=[load, fuzz, soak, start],
        level=2,
    )
