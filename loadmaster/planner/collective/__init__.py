"""Planner of collectives: sketches, list scheduling, formulations, and the driver that chooses."""
