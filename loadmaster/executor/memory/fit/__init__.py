"""Fitting a step to its budget: planned, run, measured, corrected."""
