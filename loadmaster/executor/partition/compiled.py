"""Step on shares, compiled by Inductor: both passes traced as one graph of local operators and collectives.

PyTorch's partitioner cuts it into the passes: what the backward pass can compute again at little cost, elementwise
operators most of all, is not kept for it. So a step holds less than planned, not more. Collectives are begun early and
waited for late (:mod:`.overlap`).

Results keep the memory layouts that were traced, the rest is as the compiler likes. Convolutions like channels last:
the forward pass saves its values so, and the backward pass is compiled for it. A gradient may begin in another layout,
at the mean over pixels for example, and keeps it along a residual stream, where every convolution would turn it again.
It is turned once, where a convolution first reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.traceback import preserve_node_meta

from loadmaster.executor.partition import collectives
from loadmaster.executor.partition.kernels import MADE_AGAIN
from loadmaster.executor.partition.overlap import overlapped
from loadmaster.executor.partition.split_step import SplitStep
from loadmaster.executor.torch_private.fake_tensors import FakeTensorMode
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.inductor import (
    compile_fx_inner,
    inductor_config,
    lowerings,
    make_fallback,
    min_cut_partition,
    select_decomp_table,
)
from loadmaster.executor.torch_private.tracing import TracingContext, make_fx, rename, tracing

_Run = Callable[[list[Tensor]], Sequence[Tensor]]
# The partitioner tells inputs of the backward pass from those of the forward pass by this name.
_TANGENT = "tangents_1"
# Bytes on their way in collectives are to be a small part of a plan's peak: less than what the partitioner saves.
_PEAK_OVER_AT_ONCE = 100
aten = torch.ops.aten
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class CompiledStep:
    """Forward and backward pass, compiled at the first call for the shapes and strides of that call.

    Args:
        forward, backward: first and last of their operators, as for :meth:`SplitStep.run`.
        results: tensors that the forward pass makes for others than the backward pass; the loss first.
        tangent: the gradient of the loss, and a tensor of its shape and type.
        peak_bytes: of the plan.
    """

    def __init__(
        self,
        split: SplitStep,
        forward: tuple[int, int],
        backward: tuple[int, int],
        results: Sequence[int],
        tangent: tuple[int, Tensor],
        gradients: Sequence[int],
        peak_bytes: int,
    ) -> None:
        self._peak_bytes = peak_bytes
        self._split, self._forward, self._backward = split, forward, backward
        self._results, self._tangent, self._gradients = list(results), tangent, list(gradients)
        self._reads: list[int] = []
        self._run_forward: _Run | None = None
        self._run_backward: _Run | None = None
        self._counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def forward(self, held: MutableMapping[int, Tensor]) -> list[Tensor]:
        """Run the forward pass: put its results into ``held``, and return what the backward pass needs."""
        if self._run_forward is None:
            self._compile(held)
            assert self._run_forward is not None
        self._split.redistribute.counts.update(self._counts[0])
        made = list(self._run_forward([held[n] for n in self._reads]))
        held.update(zip(self._results, made, strict=False))
        return made[len(self._results) :]

    def backward(self, saved: list[Tensor], tangent: Tensor) -> dict[int, Tensor]:
        """Run the backward pass, and return the gradients by the number of their tensor; ``saved``, from the forward
        pass, is emptied, so that a share is freed at its last use."""
        assert self._run_backward is not None
        self._split.redistribute.counts.update(self._counts[1])
        given = [*saved, tangent]
        saved.clear()
        return dict(zip(self._gradients, self._run_backward(given), strict=True))

    def _compile(self, held: MutableMapping[int, Tensor]) -> None:
        self._reads = list(held)
        _know_collectives()
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(share) for share in held.values()]
        forward, backward = self._passes(mode, fakes)
        keep_strides(forward, len(self._results))
        keep_strides(backward, len(self._gradients))
        at_once = self._peak_bytes // _PEAK_OVER_AT_ONCE
        alike = self._split.redistribute.traffic.mesh.is_even
        context = TracingContext(mode)
        context.output_strides = []
        with inductor_config.patch(
            {
                # The analysis of tilings ends in an error for sums of convolutions' channels (PyTorch 2.11).
                "triton.coalesce_tiling_analysis": False,
                # What a collective moves must not be written over before it is waited for.
                "allow_buffer_reuse": False,
                "inplace_buffers": False,
                # These bring what begins a collective back to what waits for it.
                "reorder_for_locality": False,
                "reorder_for_peak_memory": False,
            }
        ):
            with tracing(context):
                self._run_forward = compile_fx_inner(overlapped(forward, at_once, alike=alike), fakes)
            given = as_made(backward, context.output_strides[len(self._results) :], mode)
            turn_gradients(backward, given, mode)
            self._run_backward = compile_fx_inner(overlapped(backward, at_once, alike=alike), given, is_backward=True)

    def _passes(self, mode: FakeTensorMode, fakes: Sequence[Tensor]) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Trace the graphs of both passes; inputs of the backward graph are what is saved, then the tangent."""
        counts = self._split.redistribute.counts
        before = counts.copy()
        after_forward: Counter[str] = Counter()

        def step(*given: Tensor) -> list[Tensor]:
            own = dict(zip(self._reads, given[:-1], strict=True))
            self._split.run(own, *self._forward)
            after_forward.update(counts)
            own[self._tangent[0]] = given[-1]
            results = [own[n] for n in self._results]
            self._split.run(own, *self._backward)
            return [*results, *(own[n] for n in self._gradients)]

        like = self._tangent[1]
        with mode, torch.no_grad(), preserve_node_meta():
            tangent = torch.empty(like.shape, dtype=like.dtype, device=fakes[0].device)
            joint = make_fx(step, decomposition_table=select_decomp_table())(*fakes, tangent)
        self._counts = (after_forward - before, counts - after_forward)
        counts.clear()
        counts.update(before)
        last = joint.graph.find_nodes(op="placeholder")[-1]
        last.target = _TANGENT
        rename(last, _TANGENT)
        for node in joint.graph.nodes:
            if (node.meta.get("custom") or {}).items() >= MADE_AGAIN.items():
                node.meta["partitioner_tag"] = "must_be_in_backward"
        if not self._split.redistribute.traffic.mesh.is_even:
            _settle_passes(joint.graph, len(self._results))
        joint.recompile()
        # A tensor that is gathered for each pass is gathered twice: held in between, it would take memory.
        with functorch_config.patch(cse=False):
            forward, backward = min_cut_partition(joint, [*fakes, tangent], num_fwd_outputs=len(self._results))
        outputs: Any = forward.graph.output_node().args[0]
        taken = [str(node.target) for node in backward.graph.find_nodes(op="placeholder")]
        assert taken == [*(node.name for node in outputs[len(self._results) :]), _TANGENT]
        return forward, backward


def _settle_passes(graph: fx.Graph, result_count: int) -> None:
    """Put collectives that the forward pass's results do not need after the tangent, so into the backward pass. The
    partitioner would choose by sizes, which differ from rank to rank where shares are unequal. The other collectives
    are in the forward pass anyway: the partitioner repeats no collective."""
    results: Any = graph.output_node().args[0]
    ahead, needed = [node for node in results[:result_count] if isinstance(node, fx.Node)], set()
    while ahead:
        node = ahead.pop()
        if node not in needed:
            needed.add(node)
            ahead += node.all_input_nodes
    tangent = graph.find_nodes(op="placeholder")[-1]
    for node in graph.nodes:
        if node.target in collectives.BEGUN and node not in needed:
            node.args = (*node.args, tangent)


def _know_collectives() -> None:
    """Tell Inductor to call collectives as they are, as fallback kernels. Where it finds that out by itself it writes
    down, in words, all that a collective's operands are made of (PyTorch 2.11). Collectives are chained, so each of
    them doubles the length: for 24 layers it does not end."""
    for operator in (*collectives.BEGUN.values(), collectives.wait_for):
        if operator not in lowerings:
            make_fallback(operator)  # type: ignore[no-untyped-call]


def keep_strides(module: fx.GraphModule, results: int) -> None:
    """Mark the results that keep their traced strides: the first ``results`` ones, which are for others than the
    backward pass, and inputs that are returned, not to copy them."""
    output: Any = module.graph.output_node()
    kept = [n for n, made in enumerate(output.args[0]) if n < results or made.op == "placeholder"]
    output.meta["user_visible_output_idxs"] = kept


def as_made(backward: fx.GraphModule, strides: Sequence[Sequence[int] | None], mode: FakeTensorMode) -> list[Tensor]:
    """Inputs of the backward pass: saved tensors with the ``strides`` that the forward pass gives them (None: as
    traced), then the tangent, as traced."""
    given: list[Tensor] = [node.meta["val"] for node in backward.graph.find_nodes(op="placeholder")]
    with mode:
        made = [
            one if found is None else one.as_strided(one.shape, found)
            for one, found in zip(given, strides, strict=False)
        ]
    return [*made, given[-1]]


def turn_gradients(backward: fx.GraphModule, given: Sequence[Tensor], mode: FakeTensorMode) -> None:
    """Put gradients in the layout of the tensors that the convolutions reading them have saved."""
    with mode:
        _Turning(backward, garbage_collect_values=False).run(*given)
    backward.recompile()


class _Turning(fx.Interpreter):
    """Interpreter that follows strides through the pass and inserts the turns of gradients."""

    def run_node(self, n: fx.Node) -> Any:
        if n.target is aten.view.default:
            n.target = aten.reshape.default  # in another layout there may be no view
        if n.target is aten.convolution_backward.default:
            gradient, saved = n.args[:2]
            assert isinstance(gradient, fx.Node) and isinstance(saved, fx.Node)
            layout = _CHANNELS_LAST.get(self.env[saved].dim())
            if layout is not None and _is_only(self.env[saved], layout) and not _is_only(self.env[gradient], layout):
                self._turn(gradient, layout, n)
        return super().run_node(n)

    def _turn(self, gradient: fx.Node, layout: torch.memory_format, first: fx.Node) -> None:
        place = {node: at for at, node in enumerate(first.graph.nodes)}
        with first.graph.inserting_before(first):
            turned = first.graph.call_function(aten.clone.default, (gradient,), {"memory_format": layout})
        self.env[turned] = self.env[gradient].clone(memory_format=layout)
        turned.meta["val"] = self.env[turned]
        gradient.replace_all_uses_with(turned, lambda user: user is not turned and place[user] >= place[first])


def _is_only(value: Tensor, layout: torch.memory_format) -> bool:
    """Return whether a value has that layout and is not row-major as well, as with one channel or one pixel."""
    return value.is_contiguous(memory_format=layout) and not value.is_contiguous()
