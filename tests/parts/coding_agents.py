"""The real Claude Code, Codex and Gemini CLI, each run headless with a scripted model.

Each run has an empty environment, its own home and a dummy key, so it reads nothing of the user's. The exit code
proves little; `ScriptedModel` and the servers' notes show what happened.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import fleet
from toolcrib.testing.anthropic import Anthropic
from toolcrib.testing.google import Google
from toolcrib.testing.openai_responses import OpenAIResponses
from toolcrib.testing.server import ScriptedModel
from toolcrib.testing.wire import WireFormat

LIMIT = 60.0
KEY = "sk-dummy-0123456789"
PROMPT = "Use the tools."


def run_to_end(
    command: list[str], *, env: Mapping[str, str], cwd: Path, stdin: str | None = None, limit: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    if stdin is None:
        pipes["stdin"] = subprocess.DEVNULL
    process = subprocess.Popen(command, env=dict(env), cwd=cwd, text=True, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(stdin, timeout=limit)
    finally:
        # Always, because a helper that the program started must not outlive it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@dataclass(frozen=True, kw_only=True)
class CodingAgent:
    """One of the three, as data."""

    name: str
    provider: WireFormat
    prefix: str
    """The prefix or the namespace of our tools' names."""
    file: str
    """Its own configuration, below its home."""
    settings: Callable[[str], str]
    """The text of that file for the model at this URL."""
    environ: Callable[[Path, str], Mapping[str, str]]
    """Its variables, for its home and the model's URL."""
    words: tuple[str, ...]
    """Its arguments."""
    generated: Callable[[Path, Path], tuple[str, ...]]
    """Gives the program with this home the file that Toolcrib generated; returns further arguments."""
    unattended: Callable[[str], str]
    """The text of its own file with the settings that our documentation requires for unattended runs."""

    def tools(self, model: ScriptedModel) -> set[str]:
        """Our tools that the model was offered, by our names."""
        return {
            tool.name.removeprefix(self.prefix)
            for tool in model.offered
            if self.prefix in (tool.namespace, tool.name[: len(self.prefix)])
        }


@dataclass(frozen=True, kw_only=True)
class Ran:
    exit_code: int
    events: list[dict[str, Any]]
    err: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class InstalledAgent:
    """A coding agent with its own home and a model."""

    agent: CodingAgent
    home: Path
    environ: Mapping[str, str]

    @property
    def file(self) -> Path:
        return self.home / self.agent.file

    def run(self, *, cwd: Path, generated: Path | None = None, limit: float = LIMIT) -> Ran:
        """One prompt, to its end. `generated` is Toolcrib's file; without it, only its own configuration applies."""
        more = () if generated is None else self.agent.generated(self.home, generated)
        began = time.monotonic()
        command = [*fleet.command(self.agent.name), *more, *self.agent.words]
        done = run_to_end(command, env=self.environ, cwd=cwd, limit=limit)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Ran(exit_code=done.returncode, events=events, err=done.stderr, seconds=time.monotonic() - began)


def install_agent(agent: CodingAgent, folder: Path, model: ScriptedModel) -> InstalledAgent:
    home, tmp = folder / "home", folder / "tmp"
    file = home / agent.file
    for made in (file.parent, tmp):
        made.mkdir(parents=True)
    file.write_text(agent.settings(model.url))
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(tmp)}
    return InstalledAgent(agent=agent, home=home, environ={**own, **agent.environ(home, model.url)})


def _codex_generated(home: Path, generated: Path) -> tuple[str, ...]:
    (home / ".codex" / "toolcrib.config.toml").symlink_to(generated)
    return ("--profile", "toolcrib")


def _gemini_generated(home: Path, generated: Path) -> tuple[str, ...]:
    settings = home / ".gemini" / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **json.loads(generated.read_text())}))
    return ()


def _trusted(settings: str) -> str:
    data = json.loads(settings)
    data["mcpServers"]["toolcrib"]["trust"] = True
    return json.dumps(data)


CODEX_SETTINGS = """model = "gpt-4.1"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "read-only"
[model_providers.scripted]
name = "scripted"
base_url = "@URL@"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
supports_websockets = false
[analytics]
enabled = false
[feedback]
enabled = false
[features]
plugins = false
"""
"""Codex offers all tools directly to a model that it does not know."""

GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
}

CLAUDE = CodingAgent(
    name="claude",
    provider=Anthropic(),
    prefix="mcp__toolcrib__",
    file=".claude.json",
    settings=lambda _: "{}",
    environ=lambda _, url: {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Otherwise the model is offered a search for our tools instead of the tools.
        "ENABLE_TOOL_SEARCH": "false",
    },
    words=(
        *("-p", PROMPT, "--output-format", "stream-json", "--verbose"),
        *("--model", "claude-sonnet-4-5", "--allowedTools", "mcp__toolcrib"),
    ),
    generated=lambda _, file: ("--mcp-config", str(file), "--strict-mcp-config"),
    unattended=lambda text: text,
)

CODEX = CodingAgent(
    name="codex",
    provider=OpenAIResponses(),
    prefix="mcp__toolcrib",
    file=".codex/config.toml",
    settings=lambda url: CODEX_SETTINGS.replace("@URL@", url),
    environ=lambda home, _: {"CODEX_HOME": str(home / ".codex"), "SCRIPTED_KEY": KEY},
    words=("exec", "--json", "--skip-git-repo-check", "--ephemeral", PROMPT),
    generated=_codex_generated,
    unattended=lambda text: text + 'default_tools_approval_mode = "approve"\n',
)

GEMINI = CodingAgent(
    name="gemini",
    provider=Google(),
    prefix="mcp_toolcrib_",
    file=".gemini/settings.json",
    settings=lambda _: json.dumps(GEMINI_SETTINGS),
    environ=lambda home, url: {
        "GEMINI_API_KEY": KEY,
        "GEMINI_CLI_HOME": str(home),
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_CLI_NO_RELAUNCH": "true",
    },
    words=("-p", PROMPT, "--output-format", "stream-json", "-m", "gemini-2.5-flash", "--skip-trust"),
    generated=_gemini_generated,
    unattended=_trusted,
)

ALL = (CLAUDE, CODEX, GEMINI)
