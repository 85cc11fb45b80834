"""The kind ``placement``: how it is solved. ``driver:plan_placement`` is the way in."""
