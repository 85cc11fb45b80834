"""Compiling ahead: work that a fit gives to processes of their own."""
