"""Toolcrib: one room for the tools of all your agents."""

__version__ = "0.1.0"
