"""Networks of GPUs: ranks, links and shared resources; presets and published profiles."""
