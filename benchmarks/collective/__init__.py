"""Parts of the benchmark of collectives on GPUs."""
