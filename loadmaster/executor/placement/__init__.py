"""Where the tensors of a training step are while nobody needs them: on the device, in host memory, in files."""
