"""Ranges whose numbers are known, though they come out of a tensor: losses of MONAI name dimensions with them.

    reduce_axis = torch.arange(2, len(input.shape)).tolist()

Dynamo takes what is in a tensor for unknown, and no operator takes a dimension that is not known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from loadmaster.executor.steps.one_graph.patched import Change
from loadmaster.executor.torch_private.dynamo import TensorVariable, VariableTracker, tensor_method

_asks = TensorVariable.method_tolist


def _known_or_asked(tensor: TensorVariable, tx: Any) -> Any:
    made = tensor.as_proxy().node
    if not _is_known(made):
        return _asks(tensor, tx)
    ends: Any = made.args
    return VariableTracker.build(tx, list(range(*ends)))


def _is_known(made: fx.Node) -> bool:
    """Return whether a node is a range of whole numbers without users, which may have written to it."""
    if made.target is not torch.arange or made.users or made.kwargs.keys() - {"device"}:
        return False
    return all(isinstance(end, int) for end in made.args)


RANGES_AS_LISTS: Change = tensor_method("tolist", _known_or_asked)
"""Change that tells Dynamo what ``torch.arange(start, end).tolist()`` gives where it knows the ends."""
