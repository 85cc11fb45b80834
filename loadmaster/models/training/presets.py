"""Training problems that need no model of one's own: mixed-precision steps of known transformers, by roofline.

Results are bf16. Master weights, their gradients and the optimizer's states are float32. Where layers read the master
weights, each pass casts them to bf16 for itself, and for no longer. A block has four points: it keeps all that plain
PyTorch does; makes norms and the activation again; gate and up, too; or all but its input (checkpointing).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from loadmaster.models.hardware import Hardware
from loadmaster.models.placement.problem import Tier
from loadmaster.models.synthetic import SHAPES, Roofline, Shape, expect_name, expect_range
from loadmaster.models.training.problem import Group, Layer, LayerClass, Point, TrainingProblem

# Of an element: results, copies of weights and their gradients; master weights and their gradients.
_LOW_BYTES, _MASTER_BYTES = 2, 4
# A cast from one to the other, either way.
_CAST_BYTES = _LOW_BYTES + _MASTER_BYTES
_TOKEN_BYTES = 8
# Optimizer -> bytes of state, and bytes that an update reads and writes, for one parameter: gradient read, weight and
# states read and written.
OPTIMIZERS = {"adamw": (8, 28), "sgd-momentum": (4, 20), "sgd": (0, 12)}
# AdamW of PyTorch on an H200's host while its link was busy: 57 with 8 threads, 80 to 89 with 12 to 15.
HOST_UPDATE_GBPS = 80.0
BATCH = 4

# Operations and bytes moved of a kernel.
_Kernel = tuple[float, float]


def model(
    name: str,
    device: Hardware,
    *,
    batch: int = BATCH,
    sequence: int | None = None,
    micro_batches: int = 1,
    optimizer: str = "adamw",
    clip_grad_norm: bool = False,
    host_bytes: int | None = None,
    host_update_gbps: float | None = HOST_UPDATE_GBPS,
    disk_gbps: tuple[float, float] | None = None,
    disk_bytes: int | None = None,
    disk_endurance_bytes: int | None = None,
) -> TrainingProblem:
    """The training step of a known model on one device.

    Args:
        batch: sequences of a micro-batch.
        sequence: tokens of a sequence; None: the model's own.
        optimizer: a name of :data:`OPTIMIZERS`.
        host_bytes: host memory for the plan; None: more than is needed.
        host_update_gbps: bytes that updates on the host read and write, GB/s; None: the host runs none.
        disk_gbps: rates at which the host's disk writes and reads; None: nothing is in files.
        disk_bytes: room in files; None: more than is needed.
        disk_endurance_bytes: how much can be written to the disk in its life; None: no end.

    Raises:
        InputError: no model has this name, or a number is out of range.
    """
    known = expect_name("--model", name, list(SHAPES))
    shape = SHAPES[known]
    tokens = shape.sequence if sequence is None else sequence
    for field, value in (("--batch", batch), ("--sequence", tokens)):
        expect_range(field, value, 1, 2**24)
    expect_range("--micro-batches", micro_batches, 1, 1_000)
    step = _Step(shape, batch, tokens, Roofline(device), optimizer, host_update_gbps)
    many = f"{micro_batches} x " if micro_batches > 1 else ""
    return TrainingProblem(
        name=f"{known}-{f'm{micro_batches}-' if micro_batches > 1 else ''}b{batch}-s{tokens}-{device.name}",
        title=f"Training {known} with {optimizer}, {many}{batch} x {tokens} tokens, on {device.title}",
        layers=(Layer("embedding", 0), *(Layer(f"blocks.{n}", 1) for n in range(shape.layers)), Layer("head", 2)),
        classes=(step.embedding(), step.block(), step.head()),
        groups=step.groups(),
        host=Tier("host", device.to_host_gbps, device.from_host_gbps, capacity_bytes=host_bytes),
        disk=None if disk_gbps is None else Tier("disk", *disk_gbps, 0.0, disk_bytes, disk_endurance_bytes),
        fixed_bytes=2 * _TOKEN_BYTES * step.tokens,
        micro_batches=micro_batches,
        clip_grad_norm=clip_grad_norm,
    )


def parameters(shape: Shape) -> int:
    """Count the parameters of a transformer."""
    tables = 1 if shape.tied_head else 2
    return shape.layers * _block_size(shape) + tables * shape.vocabulary * shape.hidden + shape.hidden


def _block_size(shape: Shape) -> int:
    return shape.hidden * (2 * shape.hidden + 2 * _kv_width(shape) + _mlp_parts(shape) * shape.mlp + shape.mlp + 2)


def _kv_width(shape: Shape) -> int:
    return shape.kv_heads * (shape.hidden // shape.heads)


def _mlp_parts(shape: Shape) -> int:
    """Products that open the MLP: gate and up, or up alone."""
    return 2 if shape.gated else 1


@dataclass(frozen=True)
class _Step:
    shape: Shape
    batch: int
    sequence: int
    roofline: Roofline
    optimizer: str
    host_update_gbps: float | None

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch * self.sequence

    @property
    def wide(self) -> int:
        """Bytes of a result as wide as the model."""
        return self._result(self.shape.hidden)

    def _result(self, width: int) -> int:
        return _LOW_BYTES * self.tokens * width

    def _us(self, kernels: Iterable[_Kernel]) -> float:
        return sum(self.roofline.time_us(operations, moved) for operations, moved in kernels)

    def _product(self, inner: int, outer: int, times: int = 1) -> list[_Kernel]:
        kernel: _Kernel = (
            2.0 * self.tokens * inner * outer,
            _LOW_BYTES * (self.tokens * (inner + outer) + inner * outer),
        )
        return times * [kernel]

    @cached_property
    def _products(self) -> tuple[tuple[int, int], ...]:
        """Widths of the products of a block: attention's, what opens the MLP, what closes it."""
        shape = self.shape
        hidden, opened = shape.hidden, _mlp_parts(shape) * shape.mlp
        return (hidden, hidden + 2 * _kv_width(shape)), (hidden, hidden), (hidden, opened), (shape.mlp, hidden)

    def block(self) -> LayerClass:
        """The ways to run a block."""
        shape, wide = self.shape, self.wide
        into, out, opening, closing = self._products
        opened, mlp = self._result(opening[1]), self._result(shape.mlp)
        size = _block_size(shape)
        cast: _Kernel = (0.0, _CAST_BYTES * size)
        norm: _Kernel = (0.0, 2 * wide)
        norms = [norm, norm]
        # A gate has two kernels (SiLU, the product with up), which read one and two results and write one each.
        activation: list[_Kernel] = [(0.0, 2 * mlp), (0.0, 3 * mlp)] if shape.gated else [(0.0, 2 * mlp)]
        # Models without a gate have learned positions.
        rotary: list[_Kernel] = [(0.0, 2 * self._result(shape.hidden + _kv_width(shape)))] if shape.gated else []
        # A causal mask leaves half of the products.
        scores = 2.0 * self.batch * shape.hidden * self.sequence**2
        attention: _Kernel = (scores, self._result(into[1]) + wide)
        add: _Kernel = (0.0, 3 * wide)
        again = [*norms, *self._product(*into), *rotary, attention, *self._product(*out), add]
        again += [*self._product(*opening), *activation]
        forward = [cast, *again, *self._product(*closing), add]
        backward = [cast, *(kernel for product in self._products for kernel in self._product(*product, times=2))]
        backward += [(2.5 * scores, 2 * attention[1]), *rotary, *(4 * [add])]
        backward += [(0.0, 5 * mlp), (0.0, 3 * mlp)] if shape.gated else [(0.0, 3 * mlp)]
        backward.append((0.0, _CAST_BYTES * size))

        rows_of_scores = _MASTER_BYTES * self.tokens * shape.heads
        # Input, queries, keys and values, the result of attention, and the input of the second norm.
        lean = 3 * wide + self._result(into[1]) + rows_of_scores
        activated = len(activation) * mlp
        keep = lean + 2 * wide + opened + activated
        # Gradients of the block's result and input, and of all within the MLP; the largest gradient of a weight.
        largest = max(inner * outer for inner, outer in self._products)
        at_work = 2 * wide + opened + activated + _LOW_BYTES * (size + largest)

        def point(name: str, kept_bytes: int, redone: list[_Kernel]) -> Point:
            dropped = keep - kept_bytes
            return Point(
                name,
                forward_us=self._us(forward),
                backward_us=self._us(backward) + self._us(redone),
                kept_bytes=kept_bytes,
                # What is not kept is there for a while: as much as the MLP has at once.
                forward_bytes=wide + _LOW_BYTES * size + min(dropped, 2 * wide + opened + activated),
                backward_bytes=at_work + dropped,
            )

        elementwise = [*norms, *activation]
        points = (
            point("keep", keep, []),
            point("redo elementwise", lean + opened, elementwise),
            point("redo gate and up" if shape.gated else "redo up", lean, [*elementwise, *self._product(*opening)]),
            point("checkpoint", wide, again),
        )
        return LayerClass("block", points)

    def embedding(self) -> LayerClass:
        """The way to run the embedding: rows are read, and gradients added to rows of a table of zeros."""
        read = (0.0, (_LOW_BYTES + _MASTER_BYTES) * self.tokens * self.shape.hidden)
        table = (0.0, _MASTER_BYTES * self.shape.vocabulary * self.shape.hidden)
        point = Point("keep", self._us([read]), self._us([read, table]), 0, self.wide, self.wide)
        return LayerClass("embedding", (point,))

    def head(self) -> LayerClass:
        """The way to run the last norm, the head and the loss."""
        hidden, vocabulary = self.shape.hidden, self.shape.vocabulary
        logits, size = self._result(vocabulary), vocabulary * hidden
        cast, norm, loss = (0.0, _CAST_BYTES * size), (0.0, 2 * self.wide), (0.0, 2 * logits)
        forward = [cast, norm, *self._product(hidden, vocabulary), loss]
        backward = [cast, loss, *self._product(hidden, vocabulary, times=2), (0.0, 3 * self.wide), cast]
        point = Point(
            "keep",
            forward_us=self._us(forward),
            backward_us=self._us(backward),
            kept_bytes=2 * self.wide + logits + _MASTER_BYTES * self.tokens,
            forward_bytes=_LOW_BYTES * size,
            backward_bytes=logits + 2 * self.wide + 2 * _LOW_BYTES * size,
        )
        return LayerClass("head", (point,))

    def groups(self) -> tuple[Group, ...]:
        """A group for each layer's parameters, one for a table that embedding and head share."""
        shape, last = self.shape, self.shape.layers + 1
        table = shape.vocabulary * shape.hidden
        blocks = [self._group(f"blocks.{n}", (n + 1,), _block_size(shape)) for n in range(shape.layers)]
        if shape.tied_head:
            return (self._group("embedding and head", (0, last), table + shape.hidden), *blocks)
        head = self._group("head", (last,), table + shape.hidden)
        return (self._group("embedding", (0,), table), *blocks, head)

    def _group(self, name: str, layers: tuple[int, ...], size: int) -> Group:
        state, moved = OPTIMIZERS[self.optimizer]
        gbps = self.host_update_gbps
        return Group(
            name,
            layers,
            weight_bytes=_MASTER_BYTES * size,
            copy_bytes=_LOW_BYTES * size,
            gradient_bytes=_MASTER_BYTES * size,
            copy_gradient_bytes=_LOW_BYTES * size,
            state_bytes=state * size,
            update_us=self.roofline.time_us(0.0, moved * size),
            host_update_us=None if gbps is None else moved * size / (gbps * 1e3),
        )
