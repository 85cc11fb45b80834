"""Training steps, whatever is planned for them: traced, measured, wrapped, and how tensors move to the host."""
