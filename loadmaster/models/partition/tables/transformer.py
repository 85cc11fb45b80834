"""Decoder-only transformers: GPT and Llama shapes, mixed precision, AdamW.

Parameters, gradients and activations have two bytes an element, the optimizer's two states and its copy of the
parameters four each: 16 bytes a parameter in all. Shifts of products and of norms, and learned positions, are left out:
less than 1 % of a GPT.
"""

from __future__ import annotations

import math

from loadmaster.models.hardware import Hardware
from loadmaster.models.partition.tables.builder import Graph
from loadmaster.models.partition.tdl import operators as tdl
from loadmaster.models.synthetic import Shape


def transformer(shape: Shape, batch: int, sequence: int, hardware: Hardware) -> Graph:
    """Build the whole training step of a transformer."""
    return _Transformer(shape, batch, sequence, Graph(2, hardware)).build()


class _Transformer:
    def __init__(self, shape: Shape, batch: int, sequence: int, g: Graph) -> None:
        self.of, self.batch, self.sequence, self.g = shape, batch, sequence, g

    def build(self) -> Graph:
        g, of = self.g, self.of
        ids, labels = (g.tensor(name, (self.batch, self.sequence), "input", 8) for name in ("ids", "labels"))
        table = g.parameter("embedding", (of.vocabulary, of.hidden))
        x = self._embedding(table, ids)
        for layer in range(of.layers):
            with g.repeated(f"layer{layer}", "layer"):
                x = g.sum_of("after_attention", x, self._attention(self._norm("attention_norm", x)))
                x = g.sum_of("after_mlp", x, self._mlp(self._norm("mlp_norm", x)))
        x = self._norm("norm", x)
        head = table if of.tied_head else g.parameter("head", (of.vocabulary, of.hidden))
        logits = g.product("logits", "bsh,vh->bsv", x, head)
        g.loss(logits, labels, tdl.ROW_LOSS, tdl.ROW_LOSS_GRADIENT, 5.0 * math.prod(g.shape(logits)))
        g.backward()
        g.optimizer(3, 4)
        return g

    def _embedding(self, table: int, ids: int) -> int:
        g = self.g

        def backward(made: list[int]) -> None:
            g.gradients_by("embedding, gradient", tdl.EMBEDDING_GRADIENT, (g.gradient(made[0]), ids), (table,))

        return g.general("embedded", tdl.EMBEDDING, (table, ids), [(*g.shape(ids), self.of.hidden)], backward)[0]

    def _norm(self, name: str, x: int) -> int:
        g = self.g
        weight = g.parameter(f"{name}.weight", (self.of.hidden,))

        def backward(made: list[int]) -> None:
            g.gradients_by(f"{name}, gradient", tdl.NORM_GRADIENT, (g.gradient(made[0]), x, weight), (x, weight))

        flops = 8.0 * math.prod(g.shape(x))
        return g.general(name, tdl.NORM, (x, weight), [g.shape(x)], backward, flops)[0]

    def _attention(self, x: int) -> int:
        g, of = self.g, self.of
        head = of.hidden // of.heads
        queries = (of.hidden, of.kv_heads, of.heads // of.kv_heads, head)
        q = self._linear("query", "bsk,khgd->bhgsd", x, queries)
        k, v = (self._linear(w, "bsk,khd->bhsd", x, (of.hidden, of.kv_heads, head)) for w in ("key", "value"))
        # A causal mask leaves half of the products.
        flops = 2.0 * self.batch * of.hidden * self.sequence**2

        def backward(made: list[int]) -> None:
            inputs = (g.gradient(made[0]), q, k, v)
            g.gradients_by("attention, gradient", tdl.ATTENTION_GRADIENT, inputs, (q, k, v), 2.5 * flops)

        o = g.general("attention", tdl.ATTENTION, (q, k, v), [g.shape(q)], backward, flops)[0]
        return self._linear("projection", "bhgsd,hgdk->bsk", o, (*queries[1:], of.hidden))

    def _mlp(self, x: int) -> int:
        g, of = self.g, self.of
        up = self._linear("up", "bsk,km->bsm", x, (of.hidden, of.mlp))
        if of.gated:
            up = g.elementwise("gated", self._linear("gate", "bsk,km->bsm", x, (of.hidden, of.mlp)), up)
        else:
            up = g.elementwise("activated", up)
        return self._linear("down", "bsm,mk->bsk", up, (of.mlp, of.hidden))

    def _linear(self, name: str, equation: str, x: int, weight: tuple[int, ...]) -> int:
        return self.g.product(name, equation, x, self.g.parameter(f"{name}.weight", weight))
