"""The lowest floor: mixed-integer programs as plain arrays, and the solvers that answer them.

Knows no kind of problem, imports no torch and no web.
"""
