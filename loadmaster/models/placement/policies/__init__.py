"""Demand policies for placement: what a pager that knows no plan would do, on the same trace and the same links.

``simulator`` replays the step several times, operator by operator, and loads what is missing on demand; ``device`` is
the memory and the two directions of the link; ``policy`` is what a policy may decide, with LRU and Belady;
``correlation`` is the prefetcher of [DeepUM23], with its ``tables``. ``outcome`` is what a run comes to, with the list
of policies; a checked plan gives the same figures, so that all can be drawn together.
"""
