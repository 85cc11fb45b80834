"""Tensors that autograd saves for the backward pass, sent elsewhere in the forward pass and brought back in time.

Eager PyTorch, no capture and no plan: :class:`loadmaster.executor.placement.cache.tensor_cache.TensorCache`. The tensor
cache of SSDTrain ([Wu24], sections 5.3.1 to 5.3.6) on saved-tensor hooks of autograd.
"""
