"""Partition on PyTorch: operators on shares of their tensors."""
