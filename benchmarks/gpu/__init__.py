"""Training steps measured on one GPU: each row in a process of its own, compiled side by side, measured alone."""
