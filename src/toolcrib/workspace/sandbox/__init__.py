"""Where commands run: a sandbox that they cannot leave, with limits that hold for all they start."""

from toolcrib.workspace.sandbox.command import (
    CapturedOutput,
    CommandEnding,
    SandboxCommand,
    SandboxProbe,
    SandboxResult,
)
from toolcrib.workspace.sandbox.sandbox import Sandbox

__all__ = ["CapturedOutput", "CommandEnding", "Sandbox", "SandboxCommand", "SandboxProbe", "SandboxResult"]
