"""The report of the kind ``graph``: plans in words, on a page, as a picture and a table."""
