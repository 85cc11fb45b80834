"""The operators of a captured step: grouped, fused, counted in bytes and time."""
