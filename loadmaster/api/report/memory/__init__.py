"""The report of the kind ``memory``: plans and sweeps of budgets in words, on pages, as pictures and traces."""
