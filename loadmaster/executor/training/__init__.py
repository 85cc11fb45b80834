"""The kind ``training``: a training step whose parameters, gradients and optimizer state move by a plan.

``layers`` finds a model's layers and groups of parameters, ``groups`` holds the bytes of a group wherever they are,
``step`` runs a schedule, ``trial`` measures the problem with it, ``train`` is the call for users.
"""
