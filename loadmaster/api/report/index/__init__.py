"""The report of the kind ``index``: plans in words, on a page, as a picture and a table."""
