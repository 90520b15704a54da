"""The door to every server: gateway, commands, CLI and library all make their calls through it."""

from toolcrib.calls.door import CallAnswer, CallRequest, Door, ToolSource

__all__ = ["CallAnswer", "CallRequest", "Door", "ToolSource"]
