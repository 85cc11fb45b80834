"""The interfaces: HTTP service, job store, workers, Python client, browser pages, command line. No torch.

Nothing is imported here: the client needs httpx and pydantic only, and must not pull in the server.
"""
