"""What makes a training step one graph for Dynamo, which has no plan otherwise."""
