"""Message passing: built-in functions that run fused, functions of the user's in batches, softmax over edges."""
