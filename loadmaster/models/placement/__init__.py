"""The kind ``placement``: when the whole training state outgrows the device, which tier holds which block when, and
what moves next, so that one training step takes the least time.

``accesses`` is what a trace says of every block, ``checker`` replays a plan with duplex links, ``timed`` is the
time-indexed program, ``presets`` makes traces of training steps.
"""
