"""Features of nodes in host memory, read by the GPU in place: tables larger than the GPU's memory."""
