"""The kind ``collective``: over which links, in which order, each chunk of a collective travels."""
