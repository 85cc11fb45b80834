"""Models of all kinds of problems: documents, mathematics and checkers. No solver, no torch and no web are needed."""
