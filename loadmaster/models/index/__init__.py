"""The kind ``index``: which structure, with which parameters, serves an index of 64-bit keys."""
