"""From the bytes of a request to what it asks to plan: limits, memory that bodies share, processes for large ones."""
