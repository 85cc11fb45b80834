"""Models by name: ``wresnet-152-10``, ``rnn-10-8k``, ``llama3-8b``, ``gpt2``."""

from __future__ import annotations

import re

from loadmaster.errors import InputError
from loadmaster.models.hardware import Hardware
from loadmaster.models.partition.problem import Axis, PartitionProblem
from loadmaster.models.partition.tables import rnn, transformer, wresnet
from loadmaster.models.partition.tables.builder import Graph
from loadmaster.models.synthetic import SHAPES, expect_name

_WIDTHS = (4, 6, 8, 10)
_RNN_LAYERS = (4, 6, 8, 10)
_RNN_SIZES = (4, 6, 8)
# Batches with which the thesis trained its largest models.
_WRESNET_BATCH, _RNN_BATCH, _TRANSFORMER_BATCH = 8, 128, 16


def names() -> list[str]:
    """Names of all known models."""
    found = [f"wresnet-{layers}-{width}" for layers in wresnet.BLOCKS for width in _WIDTHS]
    found += [f"rnn-{layers}-{size}k" for layers in _RNN_LAYERS for size in _RNN_SIZES]
    return [*found, *SHAPES]


def model(
    name: str, axes: tuple[Axis, ...], hardware: Hardware, *, batch: int | None = None, sequence: int | None = None
) -> PartitionProblem:
    """The training step of a known model.

    Args:
        batch: samples of the whole step; None: the model's own.
        sequence: tokens of a sample, or time steps of an RNN; None: the model's own.

    Raises:
        InputError: no model has this name, or it has no sequence.
    """
    known = expect_name("--model", name, names())
    graph, told = _graph(known, hardware, batch, sequence)
    return graph.problem(known, f"{name}, {told}, {hardware.name}", axes)


def _graph(name: str, hardware: Hardware, batch: int | None, sequence: int | None) -> tuple[Graph, str]:
    numbers = [int(found) for found in re.findall(r"[0-9]+", name)]
    if name.startswith("wresnet"):
        if sequence is not None:
            raise InputError("--sequence", sequence, f"means nothing to {name}", "Leave it out.")
        samples = batch or _WRESNET_BATCH
        return wresnet.WResNet(numbers[0], numbers[1], samples, hardware).build(), f"batch {samples}"
    if name.startswith("rnn"):
        samples, steps = batch or _RNN_BATCH, sequence or rnn.STEPS
        found = rnn.rnn(numbers[0], 1024 * numbers[1], samples, steps, hardware)
        return found, f"batch {samples} x {steps} steps"
    shape = SHAPES[name]
    samples, tokens = batch or _TRANSFORMER_BATCH, sequence or shape.sequence
    return transformer.transformer(shape, samples, tokens, hardware), f"batch {samples} x {tokens}"
