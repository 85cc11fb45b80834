"""The report of the kind ``training``: plans in words, on a page, as pictures, traces and tables."""
