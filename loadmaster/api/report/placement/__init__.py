"""What the kind ``placement`` shows: plans in words, on a page, as pictures and traces; policies beside each other."""
