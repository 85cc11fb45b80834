"""Planner of graph layers: the program of all orders, and schedules by rule."""
