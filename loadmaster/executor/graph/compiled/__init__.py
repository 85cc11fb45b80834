"""Graph layers that are compiled: a program and a schedule become a module of PyTorch."""
