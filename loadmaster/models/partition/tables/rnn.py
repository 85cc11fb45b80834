"""Stacked LSTMs, unrolled ([Wang20] section 3.7.1, after [Jozefowicz16]): ``rnn-10-8k`` has ten layers of 8,192.

Each cell multiplies its input and its state by matrices of its own; the last layer is read by a loss over a small
projection. Time steps share their weights, and are split in the same way.
"""

from __future__ import annotations

import math

from loadmaster.models.hardware import Hardware
from loadmaster.models.partition.tables.builder import Graph
from loadmaster.models.partition.tdl import operators as tdl

STEPS = 20
# So many inputs and outputs bring the weights nearest to table 3.2.
INPUTS = CLASSES = 256


def rnn(layers: int, hidden: int, batch: int, steps: int, hardware: Hardware) -> Graph:
    """The whole step, with one buffer of history for each parameter."""
    g = Graph(4, hardware)
    weights = []
    for layer in range(layers):
        of_input = g.parameter(f"layer{layer}.input_weight", (hidden if layer else INPUTS, 4, hidden))
        weights.append([of_input, g.parameter(f"layer{layer}.state_weight", (hidden, 4, hidden))])
    projection = g.parameter("projection", (hidden, CLASSES))
    states = [
        [g.tensor(f"layer{layer}.{what}", (batch, hidden)) for what in ("state", "cell")] for layer in range(layers)
    ]
    for step in range(steps):
        with g.repeated(f"step{step}", "steps"):
            x = g.tensor("input", (batch, INPUTS), "input")
            labels = g.tensor("labels", (batch,), "input", 8)
        for layer in range(layers):
            with g.repeated(f"layer{layer}.step{step}", f"layer{layer}.steps"):
                states[layer] = _cell(g, x, states[layer], weights[layer])
                x = states[layer][0]
        with g.repeated(f"step{step}", "steps"):
            logits = g.product("logits", "bh,hv->bv", x, projection)
            g.loss(logits, labels, tdl.CROSS_ENTROPY, tdl.CROSS_ENTROPY_GRADIENT)
    for layer, (_, cell) in enumerate(states):
        # No step follows: the gradient of its cell is nothing.
        g.reached(cell, g.tensor(f"layer{layer}.no_gradient", (batch, hidden), "input"))
    g.backward()
    g.optimizer(1, 4)
    return g


def _cell(g: Graph, x: int, state: list[int], weights: list[int]) -> list[int]:
    h, c = state
    of_input = g.product("of_input", "bk,kgh->bgh", x, weights[0])
    of_state = g.product("of_state", "bk,kgh->bgh", h, weights[1])
    z = g.sum_of("gates", of_input, of_state)

    def backward(made: list[int]) -> None:
        g.gradients_by("cell, gradient", tdl.LSTM_GATES_GRADIENT, (*map(g.gradient, made), z, c), (z, c))

    flops = 30.0 * math.prod(g.shape(c))
    return g.general("cell", tdl.LSTM_GATES, (z, c), [g.shape(c)] * 2, backward, flops)
