"""How graph layers are planned: the program of all orders, and schedules by rule beside it."""
