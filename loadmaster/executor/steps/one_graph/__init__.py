"""Changes that let Dynamo trace a training step as one graph; only such a step has a plan."""
