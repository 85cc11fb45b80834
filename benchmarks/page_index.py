"""Section of ``docs/benchmarks.md`` about indexes of keys."""

from __future__ import annotations

import statistics

from benchmarks.drawing import Result
from benchmarks.sections import percent, section, table_of


def indexes(workloads: Result, planning: Result, python: Result) -> str:
    """Section of planned configurations, compared with the gapped array of ALEX and with the best of all."""
    rows = workloads["rows"]
    table = [
        [
            f"{row['distribution']}, {percent(row['inserts'])}",
            row["planned"],
            f"{row['peer_mops']:.2f}",
            f"{row['planned_mops']:.2f}",
            f"{row['times_peer']:.2f}",
            f"{row['bytes_of_peer']:.2f}",
        ]
        for row in rows
    ]
    won = [_range(rows, inserts, words) for inserts, words in _MIXES.items()]
    slower = [row for row in rows if row["times_peer"] < 0.95]
    names = ", ".join(f"{row['distribution']} at {percent(row['inserts'])}" for row in slower)
    lost = f"Slower by more than 5 %: {names}. " if slower else "No workload is slower by more than 5 %. "
    without = statistics.mean(row["times_best_without_trials"] for row in planning["rows"])
    by_name = {row["name"]: row for row in python["rows"]}
    first = by_name["index, fragmented log"]
    return section(
        "An index of keys",
        f"{rows[0]['keys']:,} keys of 64 bits are loaded, then {rows[0]['operations']:,} operations follow, inserts "
        "and lookups in turn in batches of 1000, from Python. `text` are real keys, "
        f"{max(row['keys'] for row in rows if row['distribution'] == 'text'):,} at most. The peer is this package's "
        "gapped array with the cost model of ALEX, on the same pages. Millions of operations a processor second.",
        "index-workloads",
        "Operations a second for four distributions of keys and four shares of inserts: gapped array and planned",
        table_of(["keys, inserts", "planned as", "gapped array", "planned", "times", "bytes"], table),
        f"Planned configurations are {won[0]}, {won[1]}, {won[2]} and {won[3]} times as fast as the gapped array. "
        f"{planning['shards']} other shards are planned, trials included, in {planning['planning_s']:.0f} s; on "
        f"{len(planning['rows'])} of them all {planning['candidates']} candidates ran, and the chosen one took "
        f"{planning['mean_times_best']:.2f} times the best one's time on average ({without:.2f} without trials), and "
        f"no more than 1.05 times on {planning['within_5_percent']}. With batches of 100,000 the fragmented log takes "
        f"{first['lookups_mops']:.0f} million lookups and {first['inserts_mops']:.0f} million inserts a second.",
        f"{lost}The longest change of structure made a write wait "
        f"{max(row['planned_pause_ms'] for row in rows):.0f} ms in planned indexes and "
        f"{max(row['peer_pause_ms'] for row in rows):.0f} ms in the gapped array.",
        workloads,
        planning,
        python,
    )


_MIXES = {1.0: "with inserts alone", 0.85: "with 85 %", 0.15: "with 15 %", 0.0: "with lookups alone"}


def _range(rows: list[Result], inserts: float, words: str) -> str:
    times = [row["times_peer"] for row in rows if row["inserts"] == inserts]
    return f"{min(times):.2f} to {max(times):.2f} ({words})"
