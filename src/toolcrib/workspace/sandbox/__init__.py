"""Runs commands in a sandbox, with limits for the whole process tree."""

from toolcrib.workspace.sandbox.command import (
    CapturedOutput,
    CommandEnding,
    SandboxCommand,
    SandboxProbe,
    SandboxResult,
)
from toolcrib.workspace.sandbox.sandbox import Sandbox

__all__ = ["CapturedOutput", "CommandEnding", "Sandbox", "SandboxCommand", "SandboxProbe", "SandboxResult"]
