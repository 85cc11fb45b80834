"""Selection of the saved tensors that a cache takes: activations of a size that pays, not what the model holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.autograd import base_of, is_functorch_wrapped
from loadmaster.executor.torch_private.sharded_tensors import without_sharding

_tokens = itertools.count()
_MARK = "_loadmaster_held"


class Selection:
    """Rule that selects the saved tensors to take: no parameters or buffers, and no storages below ``min_bytes``.

    Storages of the modules' parameters and buffers are marked, so that every view of them is known and a mark is gone
    with its storage: addresses are used again, marks are not. ``device`` is a CUDA device if anything of the model is
    on one; ``token`` numbers the selection, and so its cache. Raises InputError if nothing can be sent from the model's
    device.
    """

    def __init__(self, modules: Iterable[nn.Module], min_bytes: int) -> None:
        self._modules, self.min_bytes = tuple(modules), min_bytes
        self.token = next(_tokens)
        self.mark_held()

    def mark_held(self) -> None:
        """Find the model's parameters and buffers, which may be others, and elsewhere, than last time."""
        devices: dict[str, torch.device] = {}
        for module in self._modules:
            for tensor in itertools.chain(module.parameters(), module.buffers()):
                local = without_sharding(tensor)
                devices.setdefault(local.device.type, local.device)
                if _has_storage(local):
                    local.untyped_storage().__dict__.setdefault(_MARK, set()).add(self.token)

        self.device = devices.get("cuda") or next(iter(devices.values()), torch.device("cpu"))
        if self.device.type not in ("cpu", "cuda", "meta"):
            remedy = "Train on a CUDA device, or without a TensorCache."
            raise InputError("model", str(self.device), "is on a device that tensors are not sent from", remedy)

    def takes(self, tensor: Tensor) -> bool:
        """Return whether a saved tensor is one to send away."""
        if type(tensor) is not Tensor or tensor.device.type != self.device.type or not _has_storage(tensor):
            return False
        if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_inference():
            return False
        # FSDP2 makes whole parameters again in every step; what the layers save are views of them.
        if isinstance(base_of(tensor), nn.Parameter):
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() >= self.min_bytes and self.token not in storage.__dict__.get(_MARK, ())


def _has_storage(tensor: Tensor) -> bool:
    wrapped = is_functorch_wrapped(tensor)
    return tensor.layout is torch.strided and not wrapped and not tensor.is_nested and tensor.device.type != "meta"
