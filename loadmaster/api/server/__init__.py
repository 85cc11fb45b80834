"""The HTTP side of the service: one module per group of endpoints, put together in ``app``."""
