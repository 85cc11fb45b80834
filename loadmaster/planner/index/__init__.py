"""How the kind ``index`` is solved."""
