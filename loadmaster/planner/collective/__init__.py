"""How collectives are planned: sketches, list scheduling, formulations, and the driver that chooses."""
