"""The one door to every server: gateway, commands, CLI and library all call through it."""

from toolcrib.calls.door import Door, Outcome, Request, Shelf

__all__ = ["Door", "Outcome", "Request", "Shelf"]
