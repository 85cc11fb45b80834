"""The report of the kind ``partition``: plans in words, on a page, as a picture and a table."""
