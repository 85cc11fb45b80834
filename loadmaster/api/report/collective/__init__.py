"""What a collective plan looks like to a person."""
