"""Memory problems that need no model of one's own: the published graphs shipped here, and synthetic ones.

The synthetic ones are rough on purpose. A chain of equal operators shows what a budget does; a transformer
has the shapes of the real thing with times from a roofline: launch + max(operations / rate, bytes moved / bandwidth).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.documents import PROBLEM_SCHEMA
from loadmaster.models.hardware import Hardware
from loadmaster.models.memory.problem import last_readers

_DATA = "loadmaster.models.memory"
_ALIASES = {"resnet50-b184": "-full", "unet-b11": "-full", "mobilenet_v2-b272": "-full"}


def example_names() -> list[str]:
    """The shipped problems (``resnet50-b184-full``, ...), ascending."""
    found = [f.name for f in (files(_DATA) / "data").iterdir()]
    return sorted(n.removesuffix(".json").replace("-p100", "") for n in found if "-p100-" in n)


def example(name: str) -> dict[str, Any]:
    """A shipped problem document. Without ``-full`` or ``-recompute`` the ``-full`` one is meant.

    Raises:
        InputError: there is no such example.
    """
    full_name = name + _ALIASES.get(name, "")
    if full_name not in example_names():
        raise InputError("example", name, "no such example", f"Choose one of: {', '.join(example_names())}.")
    graph, _, variant = full_name.rpartition("-")
    document = json.loads((files(_DATA) / "data" / f"{graph}-p100-{variant}.json").read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def reference(name: str) -> dict[int, Mapping[str, float]]:
    """Published results for a shipped problem, by budget in bytes: ``best_objective_us``, ``best_bound_us``.

    Empty for any other problem. ``name`` is the document's own (``resnet50-b184-p100-full``).
    """
    published = json.loads((files(_DATA) / "data" / "reference.json").read_text("utf-8"))
    return {int(row["budget_bytes"]): row for row in published.get(name, {}).values()}


@dataclass(frozen=True)
class _Operator:
    """One forward operator of a synthetic graph. ``saves``: the forward results its backward reads."""

    op: str
    inputs: tuple[int, ...]
    output_bytes: int
    time_us: float
    backward_us: float
    saves: tuple[int, ...]


def chain(operators: int, activation_bytes: int, time_us: float = 1000.0) -> dict[str, Any]:
    """Equal operators in a row and a loss; each backward takes twice the forward time and reads its input.

    Raises:
        InputError: a number is out of range.
    """
    _expect_range("--chain", operators, 1, 10_000)
    _expect_range("--activation-bytes", activation_bytes, 1, 2**50)
    ops = [
        _Operator("block", (i - 1,) if i else (), activation_bytes, time_us, 2 * time_us, (i - 1,) if i else ())
        for i in range(operators)
    ]
    ops.append(_Operator("loss", (operators - 1,), 4, time_us / 10, time_us / 10, (operators - 1,)))
    return _document(f"chain-{operators}", f"A chain of {operators} equal operators", ops, fixed_bytes=0)


def transformer(
    layers: int, hidden: int, sequence: int, batch: int, device: Hardware, vocabulary: int = 50304
) -> dict[str, Any]:
    """A decoder-only transformer in bf16 with fused attention; weights and gradients are resident all along.

    Raises:
        InputError: a number is out of range.
    """
    for field, value in (
        ("--layers", layers),
        ("--hidden", hidden),
        ("--sequence", sequence),
        ("--batch", batch),
    ):
        _expect_range(field, value, 1, 2**24)
    rate = device.tflops_for("bfloat16") * device.compute_share * 1e6  # operations per microsecond
    bandwidth = device.dram_gbps * device.dram_share * 1e3  # bytes per microsecond
    tokens, wide = sequence * batch, 2 * sequence * batch * hidden
    ops: list[_Operator] = []

    def add(op: str, inputs: Sequence[int], output_bytes: int, operations: float, saves: Sequence[int]) -> int:
        """Append an operator; an id in ``saves`` may be its own."""
        moved = output_bytes + sum(ops[i].output_bytes for i in inputs)
        forward_us = device.launch_us + max(operations / rate, moved / bandwidth)
        backward_us = device.launch_us + 2 * max(operations / rate, moved / bandwidth)
        ops.append(_Operator(op, tuple(inputs), output_bytes, forward_us, backward_us, tuple(saves)))
        return len(ops) - 1

    matmul = 2.0 * tokens * hidden * hidden
    stream = add("embedding", (), wide, 0, ())
    for _ in range(layers):
        norm = add("layer_norm", [stream], wide, 0, [stream])
        qkv = add("linear qkv", [norm], 3 * wide, 3 * matmul, [norm])
        attention = add("attention", [qkv], wide, 2 * 2.0 * tokens * sequence * hidden / 2, [qkv, len(ops)])
        out = add("linear out", [attention], wide, matmul, [attention])
        stream = add("add", [stream, out], wide, 0, ())
        norm = add("layer_norm", [stream], wide, 0, [stream])
        up = add("linear up", [norm], 4 * wide, 4 * matmul, [norm])
        gelu = add("gelu", [up], 4 * wide, 0, [up])
        down = add("linear down", [gelu], wide, 4 * matmul, [gelu])
        stream = add("add", [stream, down], wide, 0, ())
    norm = add("layer_norm", [stream], wide, 0, [stream])
    logits = add("linear vocabulary", [norm], 2 * tokens * vocabulary, 2.0 * tokens * hidden * vocabulary, [norm])
    add("cross_entropy", [logits], 4, 0, [logits])
    weights = 2 * (12 * layers * hidden * hidden + vocabulary * hidden)
    name = f"transformer-l{layers}-h{hidden}-s{sequence}-b{batch}-{device.name}"
    title = f"A decoder of {layers} layers, hidden {hidden}, {batch} x {sequence} tokens, bf16, for {device.title}"
    return _document(name, title, ops, fixed_bytes=2 * weights)


def _document(name: str, title: str, ops: Sequence[_Operator], *, fixed_bytes: int) -> dict[str, Any]:
    """The problem document of a synthetic graph: live sets and live gradients follow from who reads what."""
    last_reader = last_readers([operator.inputs for operator in ops])
    forward: list[dict[str, Any]] = []
    for j, operator in enumerate(ops):
        live = [i for i in range(j) if last_reader[i] >= j]
        cost = [{"time_us": operator.time_us, "workspace_bytes": 0}]
        forward.append(
            {
                "id": j,
                "op": operator.op,
                "inputs": list(operator.inputs),
                "output_bytes": operator.output_bytes,
                "live_inputs": live,
                "live_bytes": sum(ops[i].output_bytes for i in live),
                "fixed_bytes": fixed_bytes,
                "implementations": cost,
                "recompute_implementations": cost,
            }
        )
    backward: list[dict[str, Any]] = []
    for k, j in enumerate(reversed(range(len(ops))), start=1):
        operator = ops[j]
        # A gradient lives from the backward of its tensor's last reader to that of its maker.
        live_bytes = sum(ops[i].output_bytes for i in range(j + 1) if last_reader[i] > j)
        costs = {"time_us": operator.backward_us, "workspace_bytes": 0, "needs": sorted(operator.saves)}
        backward.append(
            {
                "id": k,
                "op": f"{operator.op} backward",
                "output_bytes": sum(ops[i].output_bytes for i in operator.inputs),
                "live_bytes": live_bytes,
                "fixed_bytes": fixed_bytes,
                "implementations": [costs],
            }
        )
    return {
        "schema": PROBLEM_SCHEMA,
        "kind": "memory",
        "name": name,
        "title": title,
        "budget_bytes": None,
        "forward": forward,
        "backward": backward,
    }


def _expect_range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(field, value, f"is not between {low} and {high}", "Give a number in this range.")
