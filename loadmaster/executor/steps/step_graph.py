"""Joint forward-backward graph of one training step, and what Loadmaster needs to know about its nodes.

The graph comes from AOTAutograd at the level of aten operators. Four notions order it:

- a *compute node* runs a kernel; views and ``getitem`` do not, they are emitted again wherever they are read;
- the *root* of a node is the node that owns its storage: itself, the input of a view chain, or the element of a
  compute node with several results;
- *forward* nodes are the ancestors of the step's outputs, every other compute node belongs to the backward pass;
- *resident* roots (parameters, buffers, inputs, constants) are in memory all the time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import fx

from loadmaster.executor.torch_private.operators import HigherOrderOperator, OpOverload, schema_of

_CUDA_BLOCK_BYTES = 512  # the CUDA caching allocator rounds every request up to this


def is_view(node: fx.Node) -> bool:
    """Return whether the node's result shares the storage of one of its inputs."""
    target = node.target
    if target is torch.ops.aten._unsafe_view.default:  # a view that its schema does not declare
        return True
    if not isinstance(target, OpOverload):
        return False
    aliases = [r.alias_info for r in schema_of(target).returns]
    return any(a is not None and not a.is_write for a in aliases)


def is_alias(node: fx.Node) -> bool:
    """Return whether a node is a view, or an element of the several views that one operator returns."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, fx.Node) and is_view(source)


def views_of(node: fx.Node) -> set[fx.Node]:
    """Collect all views of a value, and views of those."""
    return {view for user in node.users if is_alias(user) for view in (user, *views_of(user))}


def readers_of(node: fx.Node) -> set[fx.Node]:
    """Collect the nodes that read a value or a view of it, the views included."""
    return {user for held in (node, *views_of(node)) for user in held.users}


def is_compute(node: fx.Node) -> bool:
    """Return whether the node runs a kernel, its own or one fused with its neighbours."""
    return node.op == "call_function" and node.target is not operator.getitem and not is_view(node)


def draws(target: object) -> bool:
    """Return whether an operator may draw random numbers, by its tag ``nondeterministic_seeded``."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def draws_with(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operator draws random numbers with these arguments."""
    if isinstance(target, HigherOrderOperator):  # of an operator that writes to its arguments
        return any(map(draws, args))
    if not isinstance(target, OpOverload) or not draws(target):
        return False
    names = [a.name for a in schema_of(target).arguments]
    if "dropout_p" in names:  # attention carries the tag even where it drops nothing
        at = names.index("dropout_p")
        chance: Any = kwargs.get("dropout_p", args[at] if at < len(args) else 0.0)
        return bool(chance != 0)
    return True


def is_random(node: fx.Node) -> bool:
    """Return whether the node draws random numbers: run twice, it gives two results."""
    return node.op == "call_function" and draws_with(node.target, node.args, node.kwargs)


def is_mutating(node: fx.Node) -> bool:
    """Return whether the node writes to one of its inputs."""
    target = node.target
    return isinstance(target, OpOverload) and schema_of(target).is_mutable


def is_collective(node: fx.Node) -> bool:
    """Return whether the node communicates: every rank would have to run it again."""
    target = node.target
    return isinstance(target, OpOverload) and target.namespace in ("_c10d_functional", "c10d", "symm_mem")


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Iterate over the tensors of a node's (possibly nested) result, or of a batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(element)
    elif is_dataclass(value):
        for one in fields(value):
            yield from tensors(getattr(value, one.name))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes that the allocator hands out for the tensor's storage."""
    size = int(tensor.untyped_storage().nbytes())
    if tensor.device.type == "cuda":
        return -(-size // _CUDA_BLOCK_BYTES) * _CUDA_BLOCK_BYTES
    return size


def view_source(node: fx.Node) -> fx.Node:
    """Return the input whose storage a view shares."""
    assert isinstance(node.target, OpOverload)
    for argument, schema in zip(node.args, schema_of(node.target).arguments, strict=False):
        if isinstance(argument, fx.Node) and (
            schema.alias_info is not None or node.target is torch.ops.aten._unsafe_view.default
        ):
            return argument
    return node.all_input_nodes[0]


@dataclass(frozen=True, eq=False)
class StepGraph:
    """Joint graph with its outputs split into those of the step and the gradients.

    Attributes:
        module: the graph module; every node carries its fake result in ``meta["val"]``.
        forward_outputs: new values of buffers first, then the loss.
        backward_outputs: gradients of the inputs, None where an input has none.
        mutated: primals with another value once the forward pass is over (running statistics).
        written: those of them that the forward graph writes itself, in the order of the first forward outputs.
    """

    module: fx.GraphModule
    forward_outputs: tuple[Any, ...]
    backward_outputs: tuple[Any, ...]
    mutated: frozenset[fx.Node] = frozenset()
    written: tuple[fx.Node, ...] = ()

    @classmethod
    def split(cls, module: fx.GraphModule, forward_output_count: int) -> StepGraph:
        """Make a step graph of AOTAutograd's joint graph, whose first outputs belong to the forward pass. It ends with
        copies into the buffers that the forward pass updates. Here what they copy is returned instead, before all else;
        the forward graph that is emitted ends with them again."""
        copies = module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        written, values = tuple(n.args[0] for n in copies), tuple(n.args[1] for n in copies)
        for node in copies:
            module.graph.erase_node(node)
        end = module.graph.output_node()
        outputs = tuple(cast(Sequence[Any], end.args[0]))
        descriptions = end.meta.get("desc", ())
        updated = [d.mutated_input for d in descriptions if hasattr(d, "mutated_input")]
        primals = module.graph.find_nodes(op="placeholder")
        mutated = frozenset(n for n in primals if "desc" in n.meta and n.meta["desc"] in updated)
        end.args = ([*values, *outputs],)
        if descriptions:
            end.meta["desc"] = [*(None for _ in values), *descriptions]
        forward, backward = outputs[:forward_output_count], outputs[forward_output_count:]
        return cls(module, (*values, *forward), backward, mutated | frozenset(written), written)

    @property
    def returned(self) -> tuple[Any, ...]:
        """Outputs that the forward graph returns to its caller, without values that it writes to buffers itself."""
        return self.forward_outputs[len(self.written) :]

    @cached_property
    def outcome(self) -> tuple[Any, ...]:
        """Loss, and what the model keeps from the step, without new values of buffers that are written to, and without
        inputs handed back as they are (``self.calls += 1``)."""
        values = self.forward_outputs[len(self.mutated) :]
        return tuple(n for n in values if not isinstance(n, fx.Node) or n not in self._primal_set)

    @property
    def loss(self) -> Any:
        """Loss of a step, or result of a block; an input where nothing else is returned."""
        return self.outcome[0] if self.outcome else self.returned[-1]

    @cached_property
    def kept(self) -> tuple[fx.Node, ...]:
        """Roots of what the model keeps from the step, without the loss."""
        roots = [self.roots[n] for n in self.outcome[1:] if isinstance(n, fx.Node)]
        return tuple(dict.fromkeys(r for r in roots if not self.is_resident(r)))

    @cached_property
    def nodes(self) -> tuple[fx.Node, ...]:
        """All nodes of the joint graph in execution order."""
        return tuple(self.module.graph.nodes)

    @cached_property
    def position(self) -> dict[fx.Node, int]:
        """Place of every node in execution order."""
        return {node: i for i, node in enumerate(self.nodes)}

    @cached_property
    def primals(self) -> tuple[fx.Node, ...]:
        """Placeholders of the forward pass: parameters, buffers, inputs."""
        return tuple(n for n in self.nodes if n.op == "placeholder" and "tangents" not in str(n.target))

    @cached_property
    def tangents(self) -> tuple[fx.Node, ...]:
        """Placeholders of the incoming gradients."""
        return tuple(n for n in self.nodes if n.op == "placeholder" and "tangents" in str(n.target))

    @cached_property
    def roots(self) -> dict[fx.Node, fx.Node]:
        """Root of every node: the node that owns its storage."""
        found: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            if node.target is operator.getitem:
                source = node.args[0]
                assert isinstance(source, fx.Node)
                found[node] = node if is_compute(source) else found[source]
            elif node.op == "call_function" and is_view(node):
                found[node] = found[view_source(node)]
            else:
                found[node] = node
        return found

    def producer(self, root: fx.Node) -> fx.Node:
        """Return the compute node (or placeholder) that makes a root."""
        if root.target is operator.getitem:
            source = root.args[0]
            assert isinstance(source, fx.Node)
            return source
        return root

    @cached_property
    def forward(self) -> frozenset[fx.Node]:
        """Nodes of the forward pass: the ancestors of the step's outputs."""
        found: set[fx.Node] = set()
        stack = [n for n in self.forward_outputs if isinstance(n, fx.Node)]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack.extend(node.all_input_nodes)
        return frozenset(found)

    @cached_property
    def results(self) -> dict[fx.Node, tuple[fx.Node, ...]]:
        """Roots that each compute node makes: itself, or its elements when it has several results."""
        made: dict[fx.Node, tuple[fx.Node, ...]] = {}
        for node in self.nodes:
            if is_compute(node):
                elements = tuple(u for u in node.users if u.target is operator.getitem)
                several = isinstance(node.meta.get("val"), (tuple, list))
                made[node] = elements if several else (node,)
        return made

    def reads(self, nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        """Roots that the nodes read, in order of first read, without repetition."""
        return tuple(dict.fromkeys(self.roots[i] for n in nodes for i in n.all_input_nodes))

    def bytes_of(self, root: fx.Node) -> int:
        """Bytes of a root's storage."""
        return sum(tensor_bytes(t) for t in tensors(root.meta.get("val")))

    def is_resident(self, root: fx.Node) -> bool:
        """Return whether a root is a parameter, a buffer, an input or a constant."""
        return root.op == "get_attr" or root in self._primal_set

    @cached_property
    def _primal_set(self) -> frozenset[fx.Node]:
        return frozenset(self.primals)
