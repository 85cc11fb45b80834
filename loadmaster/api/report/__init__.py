"""Plans as people look at them: words, pictures (PNG), pages that work offline (HTML), and traces (Perfetto)."""
