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
from loadmaster.models.synthetic import Forward, Roofline, decoder, expect_range

_DATA = "loadmaster.models.memory"
_ALIASES = {"resnet50-b184": "-full", "unet-b11": "-full", "mobilenet_v2-b272": "-full"}


def example_names() -> list[str]:
    """The shipped problems (``resnet50-b184-full``, ...), ascending."""
    found = [f.name for f in (files(_DATA) / "data").iterdir()]
    return sorted(n.removesuffix(".json").replace("-p100", "") for n in found if "-p100-" in n)


def example(name: str) -> dict[str, Any]:
    """A shipped problem document; ``-full`` is meant without it or ``-recompute``. ``InputError``: no such example."""
    full_name = name + _ALIASES.get(name, "")
    if full_name not in example_names():
        raise InputError("example", name, "no such example", f"Choose one of: {', '.join(example_names())}.")
    graph, _, variant = full_name.rpartition("-")
    document = json.loads((files(_DATA) / "data" / f"{graph}-p100-{variant}.json").read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def reference(name: str) -> dict[int, Mapping[str, float]]:
    """Published results for a shipped problem, by budget in bytes: ``best_objective_us``, ``best_bound_us``. Empty for
    any other problem. ``name`` is the document's own (``resnet50-b184-p100-full``)."""
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
    ``InputError``: a number is out of range."""
    expect_range("--chain", operators, 1, 10_000)
    expect_range("--activation-bytes", activation_bytes, 1, 2**50)
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
    ``InputError``: a number is out of range."""
    roofline = Roofline(device)
    ops = [_timed(o, roofline) for o in decoder(layers, hidden, sequence, batch, vocabulary)]
    weights = 2 * (12 * layers * hidden * hidden + vocabulary * hidden)
    name = f"transformer-l{layers}-h{hidden}-s{sequence}-b{batch}-{device.name}"
    title = f"A decoder of {layers} layers, hidden {hidden}, {batch} x {sequence} tokens, bf16, for {device.title}"
    return _document(name, title, ops, fixed_bytes=2 * weights)


def _timed(operator: Forward, roofline: Roofline) -> _Operator:
    """Time an operator by its work, activations read and written included; its backward takes twice that."""
    forward_us = roofline.time_us(operator.operations, operator.moved_bytes)
    backward_us = roofline.time_us(operator.operations, operator.moved_bytes, times=2)
    return _Operator(operator.op, operator.inputs, operator.output_bytes, forward_us, backward_us, operator.saves)


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
