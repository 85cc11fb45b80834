"""Placement problems that need no model of one's own: training steps with AdamW of a decoder, or of a chain of layers.

A step is the forward pass, the backward pass in reverse, and one optimizer operator for each parameter. Blocks are
whole tensors; of the optimizer, two states for each parameter. Numbers are bf16, the states float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.models.documents import PROBLEM_SCHEMA
from loadmaster.models.hardware import Hardware
from loadmaster.models.synthetic import Forward, Roofline, decoder, expect_range

# Of one element: bf16, and float32 for each of the two states.
_ELEMENT_BYTES, _STATE_BYTES = 2, 4
# What AdamW moves for one element: the parameter and both states read and written, the gradient read.
_ADAMW_BYTES = 2 * (_ELEMENT_BYTES + 2 * _STATE_BYTES) + _ELEMENT_BYTES
_TOKEN_BYTES = 8


@dataclass(frozen=True)
class _Timed:
    """A forward operator, and how long it, its backward and its optimizer take."""

    operator: Forward
    forward_us: float
    backward_us: float
    adamw_us: float


def transformer(
    layers: int,
    hidden: int,
    sequence: int,
    batch: int,
    device: Hardware,
    host_gbps: float | None = None,
    vocabulary: int = 50304,
) -> dict[str, Any]:
    """A decoder-only transformer; ``host_gbps`` each way, as the device has it where that is None. Raises InputError
    for a number that is out of range."""
    roofline = Roofline(device)
    ops = [
        _Timed(
            operator,
            roofline.time_us(operator.operations, operator.moved_bytes),
            roofline.time_us(operator.operations, operator.moved_bytes, times=2),
            roofline.time_us(0, _ADAMW_BYTES * operator.weight_size),
        )
        for operator in decoder(layers, hidden, sequence, batch, vocabulary)
    ]
    name = f"training-l{layers}-h{hidden}-s{sequence}-b{batch}-{device.name}"
    title = f"Training a decoder of {layers} layers, hidden {hidden}, {batch} x {sequence} tokens, on {device.title}"
    return _document(name, title, ops, sequence * batch * _TOKEN_BYTES, _tier(device, host_gbps))


def chain(
    layers: int,
    activation_bytes: int,
    parameter_bytes: int,
    time_us: float,
    device: Hardware,
    host_gbps: float | None = None,
) -> dict[str, Any]:
    """Equal layers in a row and a loss; a backward takes twice the forward time, an optimizer a tenth of it. Raises
    InputError for a number that is out of range."""
    expect_range("--chain", layers, 1, 10_000)
    expect_range("--activation-bytes", activation_bytes, 1, 2**50)
    expect_range("--parameter-bytes", parameter_bytes, _ELEMENT_BYTES, 2**50)
    size = parameter_bytes // _ELEMENT_BYTES
    ops = []
    for i in range(layers):
        before = (i - 1,) if i else ()
        layer = Forward("block", before, activation_bytes, 0, 0, before, f"layers.{i}", size, f"layers.{i}")
        ops.append(_Timed(layer, time_us, 2 * time_us, time_us / 10))
    loss = Forward("loss", (layers - 1,), 4, 0, 0, (layers - 1,))
    ops.append(_Timed(loss, time_us / 10, time_us / 10, 0.0))
    title = f"Training a chain of {layers} equal layers"
    return _document(f"training-chain-{layers}", title, ops, activation_bytes, _tier(device, host_gbps))


def _tier(device: Hardware, host_gbps: float | None) -> dict[str, Any]:
    to_gbps, from_gbps = (device.to_host_gbps, device.from_host_gbps) if host_gbps is None else (host_gbps,) * 2
    return {"name": "host", "to_gbps": to_gbps, "from_gbps": from_gbps}


@dataclass
class _Trace:
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    operators: list[dict[str, Any]] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def block(self, name: str, size_bytes: int, role: str) -> int:
        """The number of a block, which is new at its first mention."""
        self.blocks.setdefault(name, {"name": name, "size_bytes": size_bytes, "role": role})
        return self._numbers.setdefault(name, len(self._numbers))

    def run(self, op: str, time_us: float, reads: Sequence[int], writes: Sequence[int], module: str | None) -> None:
        """Append an operator to the trace."""
        place = {} if module is None else {"module": module}
        used = {"reads": sorted(set(reads)), "writes": sorted(set(writes))}
        self.operators.append({"op": op, "time_us": time_us, **used, **place})


def _document(name: str, title: str, ops: Sequence[_Timed], input_bytes: int, tier: dict[str, Any]) -> dict[str, Any]:
    """The problem document of a step: who reads and writes what follows from the forward operators."""
    trace = _Trace()
    given = trace.block("input", input_bytes, "input")
    results = [f"{n} {timed.operator.op}" for n, timed in enumerate(ops)]

    def result(n: int) -> int:
        return trace.block(results[n], ops[n].operator.output_bytes, "activation")

    def slope(n: int) -> int:
        return trace.block(f"{results[n]} gradient", ops[n].operator.output_bytes, "activation")

    def weight(operator: Forward, of: str, role: str, element_bytes: int = _ELEMENT_BYTES) -> list[int]:
        if operator.weight is None:
            return []
        return [trace.block(f"{operator.weight}{of}", element_bytes * operator.weight_size, role)]

    last = len(ops) - 1
    for n, timed in enumerate(ops):
        o = timed.operator
        # What the first operator starts from, and the last is held against.
        reads = [*map(result, o.inputs), *weight(o, "", "parameter"), *([given] if n in (0, last) else [])]
        trace.run(o.op, timed.forward_us, reads, [result(n)], o.module)
    written: set[int] = set()
    for n in reversed(range(len(ops))):
        o = ops[n].operator
        made = [*map(slope, o.inputs), *weight(o, " gradient", "gradient")]
        reads = [*map(result, o.saves), *weight(o, "", "parameter"), *([given] if n in (0, last) else [])]
        # Whoever comes second adds to what is there.
        reads += [block for block in made if block in written]
        reads += [] if n == last else [slope(n)]
        trace.run(f"{o.op} backward", ops[n].backward_us, reads, made, o.module)
        written.update(made)
    done: set[str] = set()
    for timed in ops:
        o = timed.operator
        if o.weight is None or o.weight in done:
            continue
        done.add(o.weight)
        kept = weight(o, "", "parameter")
        for state in (" mean", " variance"):
            kept += weight(o, state, "state", _STATE_BYTES)
        trace.run("adamw", timed.adamw_us, [*kept, *weight(o, " gradient", "gradient")], kept, o.module)
    return {
        "schema": PROBLEM_SCHEMA,
        "kind": "placement",
        "name": name,
        "title": title,
        "operators": trace.operators,
        "blocks": list(trace.blocks.values()),
        "tiers": [tier],
    }
