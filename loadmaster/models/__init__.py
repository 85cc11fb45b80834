"""The first floor: what each kind of problem *is*. Documents, mathematics and checkers; no solver, no torch, no web."""
