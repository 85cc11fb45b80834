"""Planner of the kind ``training``: what a person would write first, then a program of runs of like layers for the
proof and for the mix of ways, positions of moves by list scheduling, and a search for better ones."""
