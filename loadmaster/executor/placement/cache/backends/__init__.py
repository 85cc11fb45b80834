"""Backends that keep what a tensor cache takes from the device: pinned host memory, files, or a user's object."""
