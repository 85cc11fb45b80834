"""Placement of a training step's tensors while nobody needs them: on the device, in host memory, in files."""
