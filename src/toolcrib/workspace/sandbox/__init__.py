"""Where commands run: a sandbox that they cannot leave, with limits that hold for all they start."""

from toolcrib.workspace.sandbox.model import Captured, Command, Ending, Finished, Probe
from toolcrib.workspace.sandbox.sandbox import Sandbox

__all__ = ["Captured", "Command", "Ending", "Finished", "Probe", "Sandbox"]
