"""The report of the kind ``placement``: plans in words, on a page, as pictures and traces; policies compared."""
