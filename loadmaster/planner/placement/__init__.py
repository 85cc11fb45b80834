"""Planner of the kind ``placement``. ``driver:plan_placement`` is the way in."""
