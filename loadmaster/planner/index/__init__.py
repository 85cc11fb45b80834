"""Planner of the kind ``index``."""
