"""What a plan looks like to a person: words, pictures (PNG), pages that work offline (HTML), and traces (Perfetto)."""
