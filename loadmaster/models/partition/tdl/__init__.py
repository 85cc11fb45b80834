"""TDL: what operators compute, element by element, and the ways to split them that follow from it."""
