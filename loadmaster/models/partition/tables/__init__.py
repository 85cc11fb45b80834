"""Training steps of known models from their shapes: forward, backward and optimizer, without PyTorch."""
