"""The report of the kind ``collective``: plans in words, on a page, as pictures and traces."""
