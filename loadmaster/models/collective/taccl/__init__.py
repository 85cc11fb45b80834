"""TACCL's published pipeline: routing, ordering, contiguity, and its sketch files."""
