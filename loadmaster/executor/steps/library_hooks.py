"""Hooks that transformers sets on a model in its first call, where the model reads hidden states of its own encoder.

They are set once, under a lock (SegFormer, Wav2Vec2 for sequences):

    with _hook_installation_lock: ...

A lock is in no graph. Where a trace ends there, the library's own function sets the hooks, and the next trace finds
them. No other model gets any: each hook is one more call to trace.
"""

from __future__ import annotations

import sys

from torch import nn

LIBRARY = "transformers"
MODULE, FUNCTION = "transformers.utils.output_capturing", "maybe_install_capturing_hooks"


def set_hooks(model: nn.Module, error: Exception) -> bool:
    """Have the library set its hooks, if that is where the trace ended.

    Args:
        error: what the tracer said.

    Returns:
        Whether they are set, so that another trace goes further.
    """
    install = getattr(sys.modules.get(MODULE), FUNCTION, None)
    if install is None or FUNCTION not in str(error):
        return False
    kind = sys.modules[LIBRARY].PreTrainedModel
    for module in model.modules():  # a model before the models inside it, which it sets the hooks of
        if isinstance(module, kind):
            install(module)
    return True
