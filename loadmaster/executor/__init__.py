"""PyTorch: capture and profile a model into a problem, apply a plan, hold what happened against it."""
