"""Planned calls without Python in them: a backend of ``torch.distributed`` in C++, and the group that it serves."""
