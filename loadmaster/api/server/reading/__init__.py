"""Reading of requests to plan from their bytes: limits, memory that bodies share, processes for large ones."""
