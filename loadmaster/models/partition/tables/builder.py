"""A training step written down operator by operator: forward as it is called, then backward, then the optimizer.

Every method that adds a forward operator also says what its backward pass is; :meth:`Graph.backward` calls that in
reverse. What repeats (blocks, time steps) is added under one ``tie``: operators and tensors of the same name there are
split in the same way, and so are their gradients.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from loadmaster.models.hardware import Hardware
from loadmaster.models.partition.copies import with_copies
from loadmaster.models.partition.problem import Axis, Operator, PartitionProblem, Role, Signature, Tensor
from loadmaster.models.partition.tdl import operators as tdl

Shape = tuple[int, ...]


class Graph:
    """A step under construction, whose tensors are numbers; ``element_bytes`` are of a parameter and of all that is
    computed, and operators take their times on the ``hardware``."""

    def __init__(self, element_bytes: int, hardware: Hardware) -> None:
        self.element_bytes, self.hardware = element_bytes, hardware
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self.signatures: dict[Signature, int] = {}
        self.parameters: list[int] = []
        self._gradients: dict[int, list[int]] = {}
        self._tape: list[Callable[[], None]] = []
        self._scope: tuple[str, str] | None = None
        self._backward_from = 0

    @contextlib.contextmanager
    def repeated(self, name: str, tie: str) -> Iterator[None]:
        """Name what is added within ``name.*``, and split it as everything of the same ``tie.*``."""
        before, self._scope = self._scope, (name, tie)
        tape = len(self._tape)
        yield
        for n in range(tape, len(self._tape)):
            self._tape[n] = self._within((name, tie), self._tape[n])
        self._scope = before

    def _within(self, scope: tuple[str, str], undone: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            before, self._scope = self._scope, scope
            undone()
            self._scope = before

        return run

    def tensor(self, name: str, shape: Sequence[int], role: Role = "activation", element_bytes: int = 0) -> int:
        """Add a tensor and return its number."""
        full, tie = self._named(name)
        self.tensors.append(Tensor(full, tuple(shape), element_bytes or self.element_bytes, role, tie))
        return len(self.tensors) - 1

    def parameter(self, name: str, shape: Sequence[int]) -> int:
        """Add a parameter and return its number."""
        self.parameters.append(self.tensor(name, shape, "parameter"))
        return self.parameters[-1]

    def shape(self, tensor: int) -> Shape:
        """Shape of a tensor."""
        return self.tensors[tensor].shape

    def _named(self, name: str) -> tuple[str, str | None]:
        return (name, None) if self._scope is None else (f"{self._scope[0]}.{name}", f"{self._scope[1]}.{name}")

    def add(
        self, op: str, signature: Signature, inputs: Sequence[int], outputs: Sequence[int], flops: float = 0
    ) -> None:
        """Add one operator, at what it takes by roofline."""
        number = self.signatures.setdefault(signature, len(self.signatures))
        full, tie = self._named(op)
        moved = sum(self.tensors[t].size_bytes for t in (*inputs, *outputs))
        time_us = roofline_us(self.hardware, flops, moved, self.element_bytes)
        launch_us, module = self.hardware.launch_us, full if tie else None
        self.operators.append(
            Operator(op, number, tuple(inputs), tuple(outputs), time_us, launch_us, tie, module=module)
        )

    def differentiated(self, undone: Callable[[], None]) -> None:
        """Record what the backward pass does for what was added last."""
        self._tape.append(undone)

    # Operators that most models have

    def product(self, name: str, equation: str, a: int, b: int) -> int:
        """A sum of products (:func:`loadmaster.models.partition.tdl.operators.product`)."""
        out = self._product(name, equation, a, b, name)
        first, second, result = (*equation.split("->")[0].split(","), equation.split("->")[1])

        def undone() -> None:
            gradient = self.gradient(out)
            if self.needs_gradient(a):
                self.reached(a, self._product(f"{name}, input gradient", f"{result},{second}->{first}", gradient, b))
            if self.needs_gradient(b):
                self.reached(b, self._product(f"{name}, weight gradient", f"{first},{result}->{second}", a, gradient))

        self.differentiated(undone)
        return out

    def _product(self, op: str, equation: str, a: int, b: int, name: str | None = None) -> int:
        sources, result = equation.split("->")
        first, second = sources.split(",")
        extents = dict(zip(first + second, (*self.shape(a), *self.shape(b)), strict=True))
        out = self.tensor(name or op, [extents[letter] for letter in result])
        self.add(op, tdl.product(equation), (a, b), (out,), 2.0 * math.prod(extents.values()))
        return out

    def elementwise(self, name: str, *inputs: int) -> int:
        """A function of elements. Its gradients take the inputs again."""
        shape = self.shape(inputs[0])
        out = self.tensor(name, shape)
        self.add(name, tdl.elementwise(len(inputs), len(shape)), inputs, (out,), math.prod(shape))

        def undone() -> None:
            taken = [t for t in inputs if self.needs_gradient(t)]
            gradients = [self.tensor(f"{name}, gradient {n}", shape) for n in range(len(taken))]
            for tensor, gradient in zip(taken, gradients, strict=True):
                op = tdl.elementwise(len(inputs) + 1, len(shape))
                self.add(f"{name}, gradient", op, (self.gradient(out), *inputs), (gradient,), math.prod(shape))
                self.reached(tensor, gradient)

        self.differentiated(undone)
        return out

    def sum_of(self, name: str, *inputs: int) -> int:
        """Tensors of one shape, added: each gets the gradient of the sum as it is."""
        out = self._added(name, inputs)

        def undone() -> None:
            for tensor in inputs:
                if self.needs_gradient(tensor):
                    self.reached(tensor, self.gradient(out))

        self.differentiated(undone)
        return out

    def _added(self, name: str, inputs: Sequence[int]) -> int:
        shape = self.shape(inputs[0])
        out = self.tensor(name, shape)
        self.add(name, tdl.elementwise(len(inputs), len(shape)), inputs, (out,), math.prod(shape))
        return out

    def general(
        self,
        name: str,
        signature: Signature,
        inputs: Sequence[int],
        shapes: Sequence[Sequence[int]],
        backward: Callable[[list[int]], None],
        flops: float = 0.0,
    ) -> list[int]:
        """An operator with a backward pass of its own, which is called with its results."""
        outputs = [self.tensor(f"{name}" if len(shapes) == 1 else f"{name} {n}", s) for n, s in enumerate(shapes)]
        self.add(name, signature, inputs, outputs, flops)
        self.differentiated(lambda: backward(outputs))
        return outputs

    def gradients_by(
        self, name: str, signature: Signature, inputs: Sequence[int], of: Sequence[int], flops: float = 0.0
    ) -> None:
        """Add one operator that makes the gradients of these tensors."""
        made = [self.tensor(f"{name} {n}", self.shape(tensor)) for n, tensor in enumerate(of)]
        self.add(name, signature, inputs, made, flops)
        for tensor, gradient in zip(of, made, strict=True):
            self.reached(tensor, gradient)

    def loss(self, logits: int, labels: int, signature: Signature, gradient: Signature, flops: float = 0.0) -> None:
        """A number, from which the backward pass begins: it needs no gradient of its own."""

        def backward(made: list[int]) -> None:
            self.gradients_by("loss, gradient", gradient, (logits, labels), (logits,))

        self.general("loss", signature, (logits, labels), [()], backward, flops)

    # The backward pass

    def needs_gradient(self, tensor: int) -> bool:
        """Return whether a gradient of the tensor has anywhere to go."""
        return self.tensors[tensor].role in ("parameter", "activation")

    def gradient(self, tensor: int) -> int:
        """Gradient of a tensor: the sum of all that have reached it."""
        found = self._gradients[tensor]
        if len(found) > 1:
            self._gradients[tensor] = []
            self.reached(tensor, self._added(f"{self._short(tensor)}, sum of gradients", found))
        return self._gradients[tensor][0]

    def _short(self, tensor: int) -> str:
        return self.tensors[tensor].name.rsplit(".", 1)[-1]

    def reached(self, tensor: int, gradient: int) -> None:
        """Record a gradient of a tensor, or a part of it."""
        self._gradients.setdefault(tensor, []).append(gradient)
        if self.tensors[tensor].role == "parameter":
            self.tensors[gradient] = replace(self.tensors[gradient], role="gradient")

    def backward(self) -> None:
        """Add the backward pass: all that was recorded of it, in reverse."""
        self._backward_from = len(self.operators)
        for undone in reversed(self._tape):
            undone()

    def optimizer(self, states: int, state_bytes: int) -> None:
        """Update every parameter in place, with so many states of so many bytes an element."""
        for parameter in self.parameters:
            of = self.tensors[parameter]
            with self._scope_of(parameter):
                short = self._short(parameter)
                gradient = self.gradient(parameter)
                kept = [self.tensor(f"{short}, state {n}", of.shape, "state", state_bytes) for n in range(states)]
                op = tdl.update(2 + states, len(of.shape))
                self.add(f"{short}, update", op, (parameter, gradient, *kept), (), 10.0 * math.prod(of.shape))

    @contextlib.contextmanager
    def _scope_of(self, tensor: int) -> Iterator[None]:
        of, before = self.tensors[tensor], self._scope
        self._scope = None if of.tie is None else (of.name.rsplit(".", 1)[0], of.tie.rsplit(".", 1)[0])
        yield
        self._scope = before

    def problem(self, name: str, title: str, axes: tuple[Axis, ...]) -> PartitionProblem:
        """Partition problem of the step built so far."""
        tensors, operators, signatures = tuple(self.tensors), tuple(self.operators), tuple(self.signatures)
        return with_copies(
            PartitionProblem(name, axes, tensors, operators, signatures, title=title), self._backward_from
        )


def roofline_us(hardware: Hardware, flops: float, moved_bytes: int, element_bytes: int) -> float:
    """Time of an operator on a device: the slower of its arithmetic and its bytes, and a launch."""
    rate = hardware.tflops_for("bfloat16" if element_bytes == 2 else "float32") * hardware.compute_share
    bytes_us = moved_bytes / (hardware.dram_gbps * hardware.dram_share * 1e3)
    return hardware.launch_us + max(flops / (rate * 1e6), bytes_us)
