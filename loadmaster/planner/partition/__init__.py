"""Planner of the kind ``partition``."""
