"""Running a memory plan: two graphs emitted, compiled, and held to the plan's budget."""
