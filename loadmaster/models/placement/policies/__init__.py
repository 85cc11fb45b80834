"""Demand policies for placement: what a pager that knows no plan would do, on the same trace and the same links.

``simulator`` replays the step several times and loads what is missing on demand; ``device`` is the memory and the two
directions of the link; ``policy`` is what a policy may decide, with LRU and Belady; ``correlation`` is the prefetcher
of [DeepUM23]. ``outcome`` is what a run comes to; a checked plan gives the same figures, to be drawn together.
"""
