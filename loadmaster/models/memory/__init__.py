"""The kind ``memory``: under a byte budget, keep, recompute or offload each activation, and choose each operator's
implementation, so that one training step takes the least time.

``problem`` and ``plan`` are the typed data, ``documents`` their JSON, ``checker`` the independent replay;
the formulations are one module each.
"""
