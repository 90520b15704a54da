"""The one door to every server: gateway, commands, CLI and library all call through it."""

from toolcrib.calls.door import CallOutcome, CallRequest, Door, ToolSource

__all__ = ["CallOutcome", "CallRequest", "Door", "ToolSource"]
