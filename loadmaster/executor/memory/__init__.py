"""The kind ``memory`` on the executor floor."""
