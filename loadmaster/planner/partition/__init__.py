"""How ``partition`` is solved."""
