"""Parts of synthetic problems of several kinds: shapes of known transformers, a decoder's forward operators, and times
by roofline, which is rough on purpose: launch + max(operations / rate, bytes moved / bandwidth).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.errors import InputError
from loadmaster.models.hardware import Hardware


@dataclass(frozen=True)
class Shape:
    """A transformer: ``gated`` if the MLP has a gate (SwiGLU), ``tied_head`` if logits are made by the embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    gated: bool
    sequence: int
    tied_head: bool = False


SHAPES = {
    "gpt2": Shape(12, 768, 12, 12, 3072, 50257, gated=False, sequence=1024, tied_head=True),
    "gpt2-medium": Shape(24, 1024, 16, 16, 4096, 50257, gated=False, sequence=1024, tied_head=True),
    "gpt3-1.3b": Shape(24, 2048, 16, 16, 8192, 50257, gated=False, sequence=2048, tied_head=True),
    "gpt3-6.7b": Shape(32, 4096, 32, 32, 16384, 50257, gated=False, sequence=2048, tied_head=True),
    "llama-3b": Shape(28, 3072, 24, 8, 8192, 32000, gated=True, sequence=2048),
    "llama3.2-1b": Shape(16, 2048, 32, 8, 8192, 128256, gated=True, sequence=8192, tied_head=True),
    "llama3-8b": Shape(32, 4096, 32, 8, 14336, 128256, gated=True, sequence=8192),
    "llama3-70b": Shape(80, 8192, 64, 8, 28672, 128256, gated=True, sequence=8192),
}


@dataclass(frozen=True)
class Roofline:
    """Roofline model of kernels' times on one device, in bf16."""

    device: Hardware

    def time_us(self, operations: float, moved_bytes: float, times: float = 1) -> float:
        """Time of a kernel that does so much, or ``times`` that, us."""
        device = self.device
        rate = device.tflops_for("bfloat16") * device.compute_share * 1e6  # operations per microsecond
        bandwidth = device.dram_gbps * device.dram_share * 1e3  # bytes per microsecond
        return device.launch_us + times * max(operations / rate, moved_bytes / bandwidth)


@dataclass(frozen=True)
class Forward:
    """Forward operator of a decoder.

    Attributes:
        inputs: the operators whose results it reads.
        saves: operators whose results its backward pass reads; itself may be among them.
        operations: multiplications and additions.
        moved_bytes: of activations, read and written.
        weight, weight_size: the name of its parameter, if it has one, and the elements of it.
    """

    op: str
    inputs: tuple[int, ...]
    output_bytes: int
    operations: float
    moved_bytes: int
    saves: tuple[int, ...]
    weight: str | None = None
    weight_size: int = 0
    module: str | None = None


def decoder(layers: int, hidden: int, sequence: int, batch: int, vocabulary: int = 50304) -> list[Forward]:
    """List the forward operators of a decoder-only transformer in bf16: fused attention, tied embedding. Raises
    InputError, naming the flag, for a number that is out of range."""
    for field, value in (("--layers", layers), ("--hidden", hidden), ("--sequence", sequence), ("--batch", batch)):
        expect_range(field, value, 1, 2**24)
    tokens, wide = sequence * batch, 2 * sequence * batch * hidden
    matmul, square = 2.0 * tokens * hidden * hidden, hidden * hidden
    ops: list[Forward] = []
    module: str | None = None

    def add(
        op: str,
        inputs: Sequence[int],
        output_bytes: int,
        operations: float,
        saves: Sequence[int],
        weight: tuple[str, int] = ("", 0),
    ) -> int:
        """Append an operator; an id in ``saves`` may be its own."""
        moved = output_bytes + sum(ops[i].output_bytes for i in inputs)
        name, size = weight
        ops.append(
            Forward(op, tuple(inputs), output_bytes, operations, moved, tuple(saves), name or None, size, module)
        )
        return len(ops) - 1

    embedding = ("embedding", vocabulary * hidden)
    stream = add("embedding", (), wide, 0, (), embedding)
    for n in range(layers):
        module = layer = f"layers.{n}"
        norm = add("layer_norm", [stream], wide, 0, [stream], (f"{layer}.norm_1", hidden))
        qkv = add("linear qkv", [norm], 3 * wide, 3 * matmul, [norm], (f"{layer}.qkv", 3 * square))
        attention = add("attention", [qkv], wide, 2 * 2.0 * tokens * sequence * hidden / 2, [qkv, len(ops)])
        out = add("linear out", [attention], wide, matmul, [attention], (f"{layer}.out", square))
        stream = add("add", [stream, out], wide, 0, ())
        norm = add("layer_norm", [stream], wide, 0, [stream], (f"{layer}.norm_2", hidden))
        up = add("linear up", [norm], 4 * wide, 4 * matmul, [norm], (f"{layer}.up", 4 * square))
        gelu = add("gelu", [up], 4 * wide, 0, [up])
        down = add("linear down", [gelu], wide, 4 * matmul, [gelu], (f"{layer}.down", 4 * square))
        stream = add("add", [stream, down], wide, 0, ())
    module = None
    norm = add("layer_norm", [stream], wide, 0, [stream], ("norm", hidden))
    head = 2.0 * tokens * hidden * vocabulary
    logits = add("linear vocabulary", [norm], 2 * tokens * vocabulary, head, [norm], embedding)
    add("cross_entropy", [logits], 4, 0, [logits])
    return ops


def expect_range(field: str, value: int, low: int, high: int) -> None:
    """Refuse a number outside low..high; the InputError names ``field``."""
    if not low <= value <= high:
        raise InputError(field, value, f"is not between {low} and {high}", "Give a number in this range.")


def expect_name(field: str, name: str, known: Sequence[str]) -> str:
    """Return a model's name as it is known, whatever its capitals; the InputError for others names ``field``."""
    if name.lower() in known:
        return name.lower()
    near = difflib.get_close_matches(name.lower(), known, 1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise InputError(field, name, "is no known model", f"{meant}There are {', '.join(known)}.")
