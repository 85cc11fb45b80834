"""Plans as something else: exports, and what pages show of them. Done in processes of its own."""
