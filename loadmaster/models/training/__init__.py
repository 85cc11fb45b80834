"""The kind ``training``: one plan for a whole training step on one device. What each layer keeps or recomputes, where
parameters, gradients and optimizer state are stored, when they move, and where and when each update runs.

``phases`` is the calendar of a step, ``checker`` replays a plan to its steady state, ``formulation`` is the program of
runs of like layers, whose relaxation bounds every plan.
"""
