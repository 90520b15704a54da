"""`codex app-server`, driven as an editor would: one prompt, in which a server's questions are answered.

`codex exec` has nobody to ask. In: an installed Codex, whose file names the server, and the answer. Out: the
questions as Codex passed them on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from parts import fleet
from parts.coding_agents import PROMPT, InstalledAgent

ELICITATION = "mcpServer/elicitation/request"
SERVER_STATE = "mcpServer/startupStatus/updated"


class CodexApp:
    def __init__(self, installed: InstalledAgent, cwd: Path) -> None:
        command = [*fleet.command("codex"), "app-server"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(
            command, env=dict(installed.environ), cwd=cwd, text=True, start_new_session=True, **pipes
        )
        self._cwd = cwd
        self._answer: dict[str, Any] = {}
        self._server_state = "starting"
        self.questions: list[dict[str, Any]] = []

    def run(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """The questions of one prompt, to its end."""
        self._answer = answer
        try:
            self._ask(1, "initialize", {"clientInfo": {"name": "test", "version": "1"}})
            self._send({"method": "initialized"})
            # With the policy `never`, Codex itself declines.
            thread = self._ask(2, "thread/start", {"cwd": str(self._cwd), "approvalPolicy": "on-request"})
            while self._server_state == "starting":
                self._read_until(lambda message: message.get("method") == SERVER_STATE)
            self._ask(
                3, "turn/start", {"threadId": thread["thread"]["id"], "input": [{"type": "text", "text": PROMPT}]}
            )
            self._read_until(lambda message: message.get("method") == "turn/completed")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
        return self.questions

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _ask(self, id: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._send({"id": id, "method": method, "params": params})
        answer = self._read_until(lambda message: message.get("id") == id and "method" not in message)
        assert "result" in answer, answer
        return dict(answer["result"])

    def _read_until(self, ends: Any) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("method") == ELICITATION and "id" in message:
                self.questions.append(message["params"])
                self._send({"id": message["id"], "result": self._answer})
            if message.get("method") == SERVER_STATE:
                self._server_state = message["params"]["status"]
            if ends(message):
                return message
        raise AssertionError("the app server has ended")
