"""Partition: tensors and operators of a training step, a mesh of GPUs, and how each is split over it."""
