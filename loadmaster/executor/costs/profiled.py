"""Costs measured on the device at hand: every distinct operator is run on real tensors of its shapes.

Fused kernels are not run: they take the time of the bytes that they move, at the bandwidth that a copy measured here.
Repeated layers are measured once. The whole takes a bounded time. An operator that does not fit, or that has arguments
whose limits are not known (:mod:`.limits`), is estimated by the roofline, scaled to what was measured; the latter case
is logged. On a GPU, where a kernel that fails ends the process, operators of others run in a process of their own
(:mod:`.apart`).
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.apart import measured_apart
from loadmaster.executor.costs.limits import NotUnderstoodError, is_safe, name_of
from loadmaster.executor.costs.materialize import fills_of, materialize, values_of
from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.costs.roofline import CONVOLUTIONS, Roofline
from loadmaster.executor.costs.time_cache import KeptTimes, OperatorMeasurement, kept_times
from loadmaster.executor.costs.traffic import defaults, generated, is_free, tensor_bytes, tensors, value_of
from loadmaster.executor.costs.workspace import workspace_formula_bytes
from loadmaster.executor.steps.measure import cpu_peak_bytes, event_ms
from loadmaster.executor.torch_private.devices import sleep_on_gpu
from loadmaster.executor.torch_private.operators import OpOverload, pytree
from loadmaster.models.hardware import hardware, hardware_reported_as

logger = logging.getLogger(__name__)

OPERATOR_LIMIT_S = 0.15  # repetitions of one operator stop here
MAX_REPEATS = 15
# Share of a copy's bandwidth that generated kernels reach, measured on an H200 with ResNet-50 (0.88 to 0.91) and
# GPT-2-medium (0.80 to 0.84): profiled steps against plans (the factor "moves" of fitted steps).
FUSED_SHARE = 0.86
_PRODUCTS = defaults("mm addmm bmm baddbmm")
COPY_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}  # what the bandwidth of fused kernels is measured with


class Profiler:
    """Costs measured on one device.

    Args:
        limit_s: total time for measuring; estimates from then on.
        compiled: the operators will be compiled: what Inductor generates kernels for takes the time of the bytes that
            they move (:func:`~loadmaster.executor.costs.traffic.generated`), on a GPU the biases of convolutions too
            (:func:`without_bias`).
        channels_last: measure convolutions in this memory format, whatever the strides of their fake tensors: compilers
            choose it for the whole graph after tracing.
        kept: measurements of earlier runs, to which this one adds.
    """

    def __init__(
        self,
        device: torch.device,
        limit_s: float,
        *,
        compiled: bool = False,
        channels_last: bool = False,
        kept: KeptTimes | None = None,
    ) -> None:
        self.device = device
        self.compiled = compiled
        self.channels_last = channels_last
        self.limit_s = limit_s
        self._kept = kept
        self._has_workspace = False
        self.spent_s = 0.0
        self._measured: dict[Hashable, OperatorMeasurement | None] = {}
        self._ratios: list[float] = []
        self._copy_gbps: float | None = None
        self._estimate = _nearest_roofline(device)
        self._told: set[str] = set()

    def node_us(self, node: fx.Node) -> float:
        """Median time of the operator on its own, us."""
        if is_free(node):
            return 0.0
        made = generated(node) if self.compiled else None
        if made is not None:
            return self.move_us(*made)
        measured = self._measure(node)
        if measured is not None:
            return measured.time_us
        return self._estimate.node_us(node) * (statistics.median(self._ratios) if self._ratios else 1.0)

    def workspace_bytes(self, node: fx.Node) -> int:
        """The allocator's peak while the operator runs, in addition to inputs and results, bytes."""
        if is_free(node) or (self.compiled and generated(node) is not None):
            return 0
        measured = self._measure(node)
        return workspace_formula_bytes(node) if measured is None else measured.workspace_bytes

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        """Bytes at a share of the measured bandwidth of a copy, and a launch per kernel, us."""
        return size_bytes / (self._bandwidth_gbps() * FUSED_SHARE * 1e3) + kernels * self._estimate.hardware.launch_us

    def _measure(self, node: fx.Node) -> OperatorMeasurement | None:
        key = operator_key(node)
        if key not in self._measured:
            kept = self._kept if _is_pytorchs(node) else None
            measured = None if kept is None else kept.get(key)
            if measured is None:
                if self.spent_s >= self.limit_s:
                    return None
                start = time.perf_counter()
                measured = self._measured_now(node)
                self.spent_s += time.perf_counter() - start
                if measured is not None and kept is not None:
                    kept.add(key, measured)
            elif node.target in _PRODUCTS:
                self._make_workspace()
            self._measured[key] = measured
            if measured is not None:
                self._ratios.append(measured.time_us / self._estimate.node_us(node))
        return self._measured[key]

    def _measured_now(self, node: fx.Node) -> OperatorMeasurement | None:
        """Measure the operator where that is safe; None, and a warning, where it is not known to be, or fails."""
        try:
            fills_of(node.target, *values_of(node))
        except NotUnderstoodError as error:
            return self._counted(node, str(error))
        if self._is_run_here(node):
            return self._counted(node, self.run(node))
        # All of the graph together: a process takes seconds to begin.
        alike = {operator_key(other): other for other in node.graph.nodes if self._is_to_run_apart(other)}
        alike[operator_key(node)] = node
        settings = {"compiled": self.compiled, "channels_last": self.channels_last}
        found = measured_apart(list(alike.values()), self.device, self.limit_s - self.spent_s, settings)
        for (key, other), one in zip(alike.items(), found, strict=True):
            self._measured[key] = self._counted(other, one)
        return self._measured[operator_key(node)]

    def _is_run_here(self, node: fx.Node) -> bool:
        return self.device.type != "cuda" or is_safe(node.target)

    def _is_to_run_apart(self, node: fx.Node) -> bool:
        if is_free(node) or operator_key(node) in self._measured:
            return False
        try:
            fills_of(node.target, *values_of(node))
        except NotUnderstoodError:
            return False
        return not self._is_run_here(node)

    def _counted(self, node: fx.Node, found: OperatorMeasurement | str) -> OperatorMeasurement | None:
        """Return what was measured; or None, and log the reason once for each operator."""
        if isinstance(found, OperatorMeasurement):
            return found
        name = name_of(node.target) if isinstance(node.target, OpOverload) else str(node.target)
        if name not in self._told:
            self._told.add(name)
            logger.warning("%s is priced by a formula, not measured: %s", name, found)
        return None

    def _make_workspace(self) -> None:
        """Run a product, as measuring one would have: the library's workspace stays, and is resident in the step."""
        if self.device.type == "cuda" and not self._has_workspace:
            self._has_workspace = True
            square = torch.ones(16, 16, device=self.device)
            torch.mm(square, square)

    def run(self, node: fx.Node) -> OperatorMeasurement | str:
        """Measure an operator in this process; return in words why it cannot be measured."""
        assert callable(node.target)
        target: Callable[..., Any] = node.target
        try:
            args, kwargs = materialize(node, self.device)
            if self.channels_last and node.target in CONVOLUTIONS:
                args = pytree.tree_map(_channels_last, args)
            beside_us = 0.0
            if self.compiled and self.device.type == "cuda":
                args, read_bytes = without_bias(node.target, tuple(args))
                beside_us = self.move_us(read_bytes) if read_bytes else 0.0
            with torch.no_grad():
                workspace = self._workspace(node, target, args, kwargs)
                return OperatorMeasurement(self._time_us(target, args, kwargs) + beside_us, workspace)
        except Exception as error:  # noqa: BLE001 - an operator may raise anything at made-up values, or for want of memory
            return (str(error) or type(error).__name__).splitlines()[0]

    def _workspace(self, node: fx.Node, target: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> int:
        result = target(*args, **kwargs)
        beyond = unknown_bytes(node, result)
        if self.device.type != "cuda":
            held = sum(t.untyped_storage().nbytes() for t in tensors(result)) - beyond
            return max(workspace_formula_bytes(node), cpu_peak_bytes(lambda: target(*args, **kwargs)) - held)
        del result
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        result = target(*args, **kwargs)
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device)
        held = torch.cuda.memory_allocated(self.device)
        del result
        return max(0, peak - max(held, before)) + beyond

    def _time_us(self, target: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> float:
        timed = self._cuda_us if self.device.type == "cuda" else self._cpu_us
        times = [timed(target, args, kwargs)]
        while len(times) < MAX_REPEATS and sum(times) < OPERATOR_LIMIT_S * 1e6:
            times.append(timed(target, args, kwargs))
        return statistics.median(times)

    def _cpu_us(self, target: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> float:
        start = time.perf_counter()
        target(*args, **kwargs)
        return (time.perf_counter() - start) * 1e6

    def _cuda_us(self, target: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> float:
        # The spin lets the host run ahead: the events then enclose the kernels, not the time to launch them.
        sleep_on_gpu(200_000)
        return event_ms(lambda: target(*args, **kwargs)) * 1e3

    def _bandwidth_gbps(self) -> float:
        if self._copy_gbps is None:
            size_bytes = COPY_BYTES[self.device.type]
            copied = None if self._kept is None else self._kept.get(("copy", size_bytes))
            if copied is None:
                source = torch.ones(size_bytes // 4, device=self.device)
                copied = OperatorMeasurement(self._time_us(torch.add, (source, 1.0), {}), 0)
                if self._kept is not None:
                    self._kept.add(("copy", size_bytes), copied)
            self._copy_gbps = 2 * size_bytes / (copied.time_us * 1e3)
        return self._copy_gbps


def unknown_bytes(node: fx.Node, result: object) -> int:
    """Bytes of a call's results that the node's graph does not know: aten.col2im's result is as large as its input."""
    pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(value_of(node)), strict=False)
    both = [(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)]
    return sum(max(0, a.untyped_storage().nbytes() - b.untyped_storage().nbytes()) for a, b in both)


def profiled(
    device: torch.device, limit_s: float = 120.0, *, compiled: bool = False, channels_last: bool = False
) -> CostModel:
    """Costs measured on the device, now or earlier; arguments of :class:`Profiler`. InputError if it is not here."""
    device = torch.device(device)
    if device.type not in COPY_BYTES or (device.type == "cuda" and not torch.cuda.is_available()):
        remedy = "Use a CPU or a CUDA device that is there, or estimate with roofline(name)."
        raise InputError("device", str(device), "cannot be measured here", remedy)
    kept = kept_times(device, compiled=compiled, channels_last=channels_last)
    return Profiler(device, limit_s, compiled=compiled, channels_last=channels_last, kept=kept)


def without_bias(target: object, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], int]:
    """A convolution's arguments without its bias, and the bytes that Inductor's own kernel for the bias reads. Inductor
    adds the bias where the result is read, and sums its gradient itself. PyTorch passes over the whole result for
    either."""
    if target is torch.ops.aten.convolution.default:
        return (*args[:2], None, *args[3:]), 0
    if target is torch.ops.aten.convolution_backward.default and args[-1][2]:
        return (*args[:-1], [*args[-1][:2], False]), tensor_bytes(args[0])
    return args, 0


def _is_pytorchs(node: fx.Node) -> bool:
    """Return whether an operator is PyTorch's own: others' code may change from run to run under the same name."""
    return getattr(node.target, "namespace", None) == "aten"


def _channels_last(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dim() not in (4, 5):
        return value
    return value.to(memory_format=torch.channels_last if value.dim() == 4 else torch.channels_last_3d)


def _nearest_roofline(device: torch.device) -> Roofline:
    entry = hardware("cpu")
    if device.type == "cuda":
        entry = hardware_reported_as(torch.cuda.get_device_name(device)) or hardware("a100-40gb")
    return Roofline(
        entry,
        tf32_matmul=torch.get_float32_matmul_precision() != "highest",
        tf32_convolution=torch.backends.cudnn.allow_tf32,
    )


def operator_key(node: fx.Node) -> Hashable:
    """Key of a node, equal for operators that run the same: target, shapes, strides, dtypes and plain arguments."""

    def described(leaf: object) -> str:
        if isinstance(leaf, Tensor):
            return f"{leaf.dtype}{tuple(leaf.shape)}{leaf.stride()}"
        return repr(leaf)

    values = fx.node.map_arg((node.args, dict(node.kwargs)), value_of)
    leaves, structure = pytree.tree_flatten(values)
    return (str(node.target), str(structure), tuple(map(described, leaves)))
