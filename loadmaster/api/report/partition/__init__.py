"""What the kind ``partition`` shows: plans in words, on a page, as a picture and a table."""
