"""Dynamo's graph of a step as bytes, so that another process can compile it: tensors go as fake tensors, together with
the settings of PyTorch and of Inductor that decide how it is compiled.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from loadmaster.executor.torch_private.dynamo import GraphPickler, PickleOptions
from loadmaster.executor.torch_private.fake_tensors import FakeTensor, FakeTensorMode
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.inductor import inductor_config
from loadmaster.executor.torch_private.operators import is_view_of_another
from loadmaster.executor.torch_private.tracing import note_as_dynamo_does

# Which inputs stay where they are from step to step: torch.compile keeps those for the backward pass at no cost.
_KEPT, _STATIC = "tensor_dict", "_dynamo_static_input_type"
_FLAGS = (
    "backends.cudnn.allow_tf32",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
)
_ATTENTIONS = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")


def sent(module: fx.GraphModule) -> bytes:
    """Pickle the graph and its fake inputs; raises exceptions of many kinds where something in it cannot be sent."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        static = node.meta.get(_KEPT, {}).get(_STATIC)
        node.meta = {} if static is None else {_KEPT: {_STATIC: static}}
    inputs = [_no_view(node.meta["example_value"]) for node in module.graph.find_nodes(op="placeholder")]
    options = PickleOptions(ops_filter=None, node_metadata_key_filter=lambda key: key == _KEPT)
    return GraphPickler.dumps((fx.GraphModule(module, graph), inputs), options)


def _no_view(fake: Any) -> Any:
    """Make an equal fake tensor of the same storage that is not a view: some PyTorch versions cannot send the base."""
    if not isinstance(fake, FakeTensor) or not is_view_of_another(fake):
        return fake
    with fake.fake_mode, torch.no_grad():
        own = torch.empty(0, dtype=fake.dtype, device=fake.device)
        own.set_(fake.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())
    return own.requires_grad_(fake.requires_grad)


def received(data: bytes, mode: FakeTensorMode) -> tuple[fx.GraphModule, list[Any]]:
    """Unpickle the graph, as a backend of torch.compile gets it, and the fake tensors that it is called with."""
    module, inputs = cast(tuple[Any, list[Any]], GraphPickler.loads(data, mode))
    note_as_dynamo_does(module)
    return module, inputs


@dataclass(frozen=True)
class TorchSettings:
    """Settings that decide how PyTorch compiles a graph; those that this PyTorch has and that can be sent. ``autocast``
    is by kind of device; ``device`` is the current CUDA device, if there is one; loops are written for as many
    ``threads``."""

    autocast: Mapping[str, tuple[bool, torch.dtype]]
    autocast_cache: bool
    dtype: torch.dtype
    products: str
    deterministic: tuple[bool, bool]
    flags: Mapping[str, bool | str]
    attentions: Mapping[str, bool]
    inductor: Mapping[str, Any]
    functorch: Mapping[str, Any]
    device: int | None
    threads: int

    @classmethod
    def here(cls) -> TorchSettings:
        """Read the settings that this thread has at present."""
        flags: dict[str, bool | str] = {}
        for name in _FLAGS:
            with contextlib.suppress(AttributeError, RuntimeError):
                flags[name] = operator.attrgetter(name)(torch)
        cuda = torch.backends.cuda
        attentions = {n: getattr(cuda, f"{n}_enabled")() for n in _ATTENTIONS if hasattr(cuda, f"{n}_enabled")}
        kinds = ("cpu", "cuda")
        return cls(
            {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds},
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            flags,
            attentions,
            inductor_config.save_config_portable(),
            functorch_config.save_config_portable(),
            torch.cuda.current_device() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
            torch.get_num_threads(),
        )

    def take(self) -> None:
        """Set them in this thread, for good."""
        if self.device is not None:
            torch.cuda.set_device(self.device)
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        # Setting an equal value again would count as another setting.
        if torch.get_float32_matmul_precision() != self.products:
            torch.set_float32_matmul_precision(self.products)
        torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
        for name, value in self.flags.items():
            holder, _, last = name.rpartition(".")
            if operator.attrgetter(name)(torch) != value:
                setattr(operator.attrgetter(holder)(torch), last, value)
        for name, on in self.attentions.items():
            getattr(torch.backends.cuda, f"enable_{name}")(on)
        inductor_config.load_config(dict(self.inductor))
        functorch_config.load_config(dict(self.functorch))
        torch.set_autocast_cache_enabled(self.autocast_cache)
        for kind, (is_on, dtype) in self.autocast.items():
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, dtype)
