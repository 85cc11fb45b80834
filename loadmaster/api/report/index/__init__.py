"""What the kind ``index`` shows: plans in words, on a page, as a picture and a table."""
