"""A fourth coding agent, made as docs/coding-agents.md describes: an entry, a parser and a small program.

Its prompt is a list of steps, so it needs no model. For behaviour that all coding agents share: time limits, the end
of a run, the environment, the log.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.client_spec import (
    HEADERS,
    SERVER_NAME,
    URL,
    ClientFileFormat,
    ClientSpec,
    HeadlessSpec,
    Launch,
    LaunchRequest,
    RunReport,
    TokenUsage,
)
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

PROGRAM = r"""
import json, os, signal, subprocess, sys, time, urllib.error, urllib.request

if "--version" in sys.argv:
    sys.exit(print("scribe 1.4.0"))


def tell(**line):
    print(json.dumps(line), flush=True)


def ask(method, params):
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "scribe/id": params.pop("id", ""),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
        "Mcp-Name": params.get("name", ""),
        **json.loads(os.environ["SCRIBE_HEADERS"]),
    }
    request = urllib.request.Request(os.environ["SCRIBE_URL"], json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read().decode()
    except urllib.error.HTTPError as error:
        return {"error": f"{error.code} {error.read().decode()}"}
    except OSError as error:
        return {"error": str(error)}
    datas = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    return json.loads(datas[-1] if datas else body)


session = next((word for word in sys.argv if word.startswith("session=")), "session=new").partition("=")[2]
tell(type="begin", session="scribe-1" if session == "new" else session, words=sys.argv[1:], cwd=os.getcwd())
if os.environ.get("SCRIBE_URL") and "--never-ask" not in sys.argv:
    listed = ask("tools/list", {})
    if "error" in listed:
        tell(type="no_tools", why=str(listed["error"]))
        if "--insist" in sys.argv:
            sys.exit(3)
for number, step in enumerate(json.loads(sys.stdin.read())):
    (what, given), = step.items()
    if what == "say":
        tell(type="say", text=given)
    elif what == "print":
        print(given, flush=True)
    elif what == "complain":
        print(given, file=sys.stderr, flush=True)
    elif what == "call":
        name, arguments, *silent = given
        if not silent:
            tell(type="call", id=f"s{number}", name=name, arguments=arguments)
        answer = ask("tools/call", {"name": name, "arguments": arguments, "id": f"s{number}"})
        if not silent:
            tell(type="called", id=f"s{number}", name=name, answer=answer)
    elif what == "variables":
        tell(type="say", text=json.dumps(dict(os.environ)))
    elif what == "until":
        while not os.path.exists(given):
            time.sleep(0.01)
    elif what == "leave":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
        tell(type="say", text=str(child.pid))
    elif what == "talks":
        def talk(*_, lines=given):
            for n in range(lines):
                os.write(1, json.dumps({"type": "last", "n": n}).encode() + b"\n")
            os._exit(0)
        signal.signal(signal.SIGINT, talk)
    elif what == "tick":
        while True:
            with open(given + ".new", "w") as file:
                file.write(str(time.monotonic()))
            os.replace(given + ".new", given)
            time.sleep(0.05)
    elif what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif what == "exit":
        sys.exit(given)
tell(type="end", tokens={"in": 11, "out": 7, "cached": 3})
"""


class ScribeParser:
    def __init__(self) -> None:
        self.report = RunReport()

    def parse(self, line: Mapping[str, Any]) -> Iterable[AgentEvent]:
        match line:
            case {"type": "begin", "session": str(session)}:
                self.report.session = session
            case {"type": "no_tools", "why": str(why)}:
                self.report.mcp_failure = why
            case {"type": "say", "text": str(text)}:
                self.report.text = text
                return (self._event(AgentEventKind.MESSAGE, line, role="assistant", text=text),)
            case {"type": "call", "id": str(call), "name": str(name), "arguments": dict(arguments)}:
                return (self._tool(line, call, name, ToolStatus.STARTED, tool_args=arguments),)
            case {"type": "called", "id": str(call), "name": str(name), "answer": answer}:
                return (self._tool(line, call, name, ToolStatus.OK, text=json.dumps(answer)),)
            case {"type": "end", "tokens": dict(tokens)}:
                self.report.ended = True
                read, wrote, cached = (tokens[name] for name in ("in", "out", "cached"))
                self.report.usage = TokenUsage(input=read, output=wrote, cached=cached, reported=tokens)
        return (self._event(AgentEventKind.RAW, line),)

    def parse_stderr(self, line: str) -> Iterable[AgentEvent]:
        return (AgentEvent(kind=AgentEventKind.LOG, provider="scribe", role="system", text=line, raw=line),)

    def _tool(self, line: Mapping[str, Any], call: str, name: str, status: ToolStatus, **more: Any) -> AgentEvent:
        fixed = {"server": SERVER_NAME, "role": "assistant", "call": call}
        return self._event(AgentEventKind.TOOL, line, tool_name=name, tool_status=status, **fixed, **more)

    def _event(self, kind: AgentEventKind, line: Mapping[str, Any], **more: Any) -> AgentEvent:
        return AgentEvent(kind=kind, provider="scribe", raw=line, **more)


def launch(request: LaunchRequest) -> Launch:
    headers = {"Authorization": f"Bearer {request.token}", **request.headers}
    return Launch(
        args=(f"session={request.session or 'new'}", *request.extra),
        environ={"SCRIBE_URL": request.url, "SCRIBE_HEADERS": json.dumps(headers)},
        files={"scribe.json": json.dumps({"url": request.url})},
        stdin=request.prompt,
        governed=("It has no tools of its own.",),
    )


HEADLESS = HeadlessSpec(
    program="scribe",
    oldest=(1, 2),
    install="pip install scribe",
    keeps=("SCRIBE_",),
    launch=launch,
    parser=ScribeParser,
    call_mark="scribe/id",
    is_session=lambda text: text.startswith("scribe-"),
)
SCRIBE = ClientSpec(
    name="scribe",
    title="Scribe",
    format=ClientFileFormat.JSON,
    keys=("servers",),
    places={},
    stdio_template={},
    http_template={},
    private_template={"url": URL, "headers": HEADERS},
    private_use="scribe {file}",
    headless=HEADLESS,
)

REFUSED = replace(
    SCRIBE, headless=replace(HEADLESS, launch=lambda request: launch(replace(request, token="tcb_wrong")))
)
"""Its token is refused."""


def install(folder: Path) -> Path:
    """Writes the program into the folder, which must be on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "scribe"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    return program
