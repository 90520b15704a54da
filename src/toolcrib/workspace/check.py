"""What is in force in one folder: `toolcrib workspace check`, as plain values.

In: a folder and the settings that were loaded for it. Out: a JSON object that says what is confined, which sandbox
holds, which tools are on and why others are not. The sandbox is really opened and tested; nothing stays behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolcrib.errors import ToolcribError, WorkspaceError
from toolcrib.workspace.ci import in_ci
from toolcrib.workspace.sandbox import Sandbox
from toolcrib.workspace.settings.keys import flat
from toolcrib.workspace.settings.load import Loaded
from toolcrib.workspace.settings.model import SHELL_TOOLS, TOOL_NAMES, WRITING_TOOLS
from toolcrib.workspace.workspace import Workspace


async def examine(
    root: Path, loaded: Loaded, *, environ: Mapping[str, str], unfit: Sequence[Path], unsafe_no_sandbox: bool = False
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "root": str(root),
        "refusal": None,
        "sandbox": None,
        "tools": [],
        "ci": in_ci(environ),
        "settings": flat(loaded.settings),
        "origins": dict(loaded.origins),
        "files": [{"file": str(one.path), "standing": str(one.standing)} for one in loaded.files],
        "problems": [{**asdict(problem), "text": str(problem)} for problem in loaded.problems],
        "broken": loaded.settings.broken,
        "untrusted": str(loaded.wants_trust) if loaded.wants_trust else None,
        "effects": list(loaded.effects),
    }
    try:
        workspace = Workspace(root, loaded.settings, environ=environ, unsafe_no_sandbox=unsafe_no_sandbox, unfit=unfit)
    except WorkspaceError as error:
        found["refusal"] = _told(error)
        found["tools"] = [_tool(name, "refused", error.message, error.remedy) for name in TOOL_NAMES]
        return found
    try:
        found["root"] = str(workspace.root)
        sandbox = await workspace.sandbox()
        found["sandbox"] = _sandbox(sandbox)
        found["tools"] = [_state(workspace, name, loaded, sandbox) for name in TOOL_NAMES]
    finally:
        await workspace.close()
    return found


def _sandbox(sandbox: Sandbox) -> dict[str, Any]:
    return {
        **sandbox.describe(),
        "holds": sandbox.refusal is None and not sandbox.unsafe,
        "refusal": _told(sandbox.refusal) if sandbox.refusal else None,
        "probes": [{"name": probe.name, "held": probe.held, "detail": probe.detail} for probe in sandbox.probes],
    }


def _state(workspace: Workspace, name: str, loaded: Loaded, sandbox: Sandbox) -> dict[str, Any]:
    """Off is what somebody decided; refused is what cannot be, and which somebody has to mend."""
    if loaded.settings.broken:
        return _tool(name, "refused", loaded.settings.broken, "Mend the file.")
    if (why := workspace.why_not(name)) is not None:
        return _tool(name, "off", why.message, why.remedy, _decided_by(name, loaded))
    if workspace.runs_code(name) and sandbox.refusal is not None:
        return _tool(name, "refused", sandbox.refusal.message, sandbox.refusal.remedy)
    return _tool(name, "on")


def _decided_by(name: str, loaded: Loaded) -> str:
    """The file or flag that took the tool away; nothing where it is built in."""
    if name in loaded.settings.off:
        return loaded.origins.get(f"tools.{name}", "")
    if loaded.settings.read_only and name in WRITING_TOOLS:
        return loaded.origins.get("read_only", "")
    return loaded.origins.get("forbid_shell_in_ci", "") if name in SHELL_TOOLS else ""


def _tool(name: str, state: str, why: str = "", remedy: str = "", said_by: str = "") -> dict[str, Any]:
    return {"name": name, "state": state, "why": why, "remedy": remedy, "said_by": said_by}


def _told(error: ToolcribError) -> dict[str, str]:
    return {"message": error.message, "remedy": error.remedy}
