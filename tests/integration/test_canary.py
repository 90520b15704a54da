"""Secrets are planted wherever people put them, everything is used, and then they are searched for everywhere.

Each secret may be where its owner put it: in the configuration, encrypted among the user's secrets, in the token file,
in the agent's generated configuration, in the one answer that contains a new token. It must not be anywhere else (logs,
database, audit log, error messages, outputs, process arguments, environments of other processes), in any encoding, nor
half of it.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from parts.agent_clients import AgentClient, AgentEndpoint, Owner, nonce_of, refusal
from parts.canary import Trail, Watch, WebWitness, served
from parts.daemon import Cli, Daemon, Finished, Home, StartDaemon
from parts.postgres import PASSWORD, Postgres
from parts.raw_client import RawAnswer, legacy_request, notice
from parts.recording_server import Notes
from parts.waiting import wait_for

pytestmark = pytest.mark.req("KSI-8", "KSI-2")

SAYS_ITS_TOKEN = """
import base64, json, os, sys, urllib.parse as url
token = os.environ["BROKEN_TOKEN"]
forms = [token, url.quote(token), url.quote(token, safe=""), url.quote_plus(token)]
forms += [json.dumps({"token": token}), json.dumps(token).replace("/", "\\\\/")]
for before in ("", "a", "ab"):
    raw = (before + token + "z").encode()
    forms += [base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()]
print("my token is", *forms, file=sys.stderr)
sys.exit(3)
"""
SAYS_ITS_WORDS = "SAYS_ITS_WORDS = 1; import sys; print('worded', *sys.argv, file=sys.stderr); sys.exit(3)"


@pytest.fixture
def web() -> Iterator[WebWitness]:
    with served() as server:
        yield server


@dataclass(kw_only=True)
class Scene:
    trail: Trail
    home: Home
    cli: Cli
    env: dict[str, str]
    notes: dict[str, Notes]
    web: WebWitness

    def run(self, *words: str, minted: str = "", **more: Any) -> Finished:
        """Runs a command and keeps its output. `minted` names the token that it may show, once."""
        done = self.cli(*words, env=self.env, **more)
        for stream, text in (("out", done.out), ("err", done.err)):
            self.trail.keep(f"{'mint' if minted and stream == 'out' else 'cli'} {stream}: {' '.join(words)}", text)
        return done

    def mint(self, label: str, *words: str) -> str:
        token: str = self.run(*words, "--json", minted=label).ok().json["token"]
        self.trail.plant(label, token, "mint out")
        return token

    def answered(self, what: str, answer: RawAnswer, *own: str) -> RawAnswer:
        """Keeps the answer. `own` names the secrets that it may contain: those of the caller and its request."""
        self.trail.lawful += [(name, f"answer: {what}") for name in own]
        self.trail.keep(f"answer: {what}", answer.body + repr(dict(answer.headers)).encode())
        return answer

    def keep_files(self, when: str) -> None:
        for path in sorted(self.home.path.rglob("*")):
            if path.is_file() and path not in {notes.path for notes in self.notes.values()}:
                self.trail.keep(f"{when} file {path.relative_to(self.home.path)}", path.read_bytes())


def plan(scene: Scene) -> dict[str, Any]:
    """The configuration, with a secret in every place that has room for one."""
    plant, port = scene.trail.plant, scene.web.port

    def stdio(name: str, *tools: str, **more: Any) -> dict[str, Any]:
        scene.notes[name] = Notes(scene.home.path / f"seen-{name}")
        return scene.notes[name].server(*tools, **more)

    user, key = quote(plant("url password", None), safe=""), quote(plant("url key", None), safe="")
    leaky = {"LEAKY_API_KEY": plant("env value"), "REFERENCED": "${TC_FROM_ENV}"}
    servers = {
        "leaky": stdio("leaky", "note", flags=["--print-env"], env=leaky),
        "other": stdio("other", "note", era="legacy"),
        "slow": stdio("slow", "note", call_timeout=0.3),
        "web": {
            "url": f"http://127.0.0.1:{port}/mcp?access_token={quote(plant('query token'), safe='')}",
            "headers": {"X-Api-Key": plant("header"), "Authorization": f"Bearer {plant('bearer')}"},
        },
        "gone": {"url": f"http://me:{user}@127.0.0.1:9/mcp?api_key={key}"},
        "broken": {
            "command": sys.executable,
            "args": ["-c", SAYS_ITS_TOKEN],
            "env": {"BROKEN_TOKEN": plant("broken env")},
        },
    }
    literal = tuple(scene.trail.secrets.keys() - {"inherited", "store password"})
    servers |= _plan_of_kinds(scene) | _plan_of_the_stored(scene)
    for name in (*literal, "basic password", "api key", "argument of a program", "echoed header", "echoed query"):
        scene.trail.lawful += [(name, f"{when} file t/config.json") for when in ("live", "ended")]
    return {"servers": servers}


def _plan_of_kinds(scene: Scene) -> dict[str, Any]:
    """Every kind of `auth`, a program's arguments, and a server that repeats what it gets in its errors."""
    plant, at = scene.trail.plant, f"http://127.0.0.1:{scene.web.port}"
    file = scene.home.path / "token-file"
    file.write_text(plant("token file", None, "live file token-file", "ended file token-file"))
    file.chmod(0o600)
    echoed = quote(plant("echoed query"), safe="")
    return {
        "basic": {
            "url": f"{at}/basic",
            "auth": {"type": "basic", "username": "me", "password": plant("basic password")},
        },
        "keyed": {"url": f"{at}/keyed", "auth": {"type": "api_key", "apiKey": plant("api key"), "headerName": "X-Own"}},
        "filed": {"url": f"{at}/filed", "auth": {"type": "token_file", "tokenPath": str(file)}},
        "echo": {"url": f"{at}/echo?key={echoed}", "headers": {"X-Own": plant("echoed header")}},
        "worded": {
            "command": sys.executable,
            "args": ["-c", SAYS_ITS_WORDS, f"--token={plant('argument of a program')}"],
        },
    }


STORED = {
    "STORED_ENV": "stored env",
    "STORED_BEARER": "stored bearer",
    "typed-header": "stored input",
    "STORED_PASSWORD": "stored password",
    "STORED_ECHO": "stored echoed header",
    "STORED_QUERY": "stored echoed query",
    "client-secret": "stored client secret",
    "MACHINE_SECRET": "stored machine secret",
    "STORED_WORD": "stored argument",
    "UNUSED": "stored and unused",
}
"""The name of each of the user's secrets, and its label."""


def _plan_of_the_stored(scene: Scene) -> dict[str, Any]:
    """The user's secrets, in every place where a reference may be."""
    at = f"http://127.0.0.1:{scene.web.port}"
    for name, label in STORED.items():
        scene.trail.plant(label)
        scene.run("secret", "set", name, stdin=scene.trail.plant(f"replaced {label}")).ok()
        scene.run("secret", "set", name, "--json", stdin=scene.trail.secrets[label]).ok()
    scene.notes["stored"] = notes = Notes(scene.home.path / "seen-stored")
    away = {"clientId": "c", "tokenUrl": f"{at}/echo/token"}
    headers = {"Authorization": "Bearer ${STORED_BEARER}", "X-Typed": "${input:typed-header}"}
    basic = {"type": "basic", "username": "me", "password": "${STORED_PASSWORD}"}
    return {
        "stored": notes.server("note", flags=["--print-env"], env={"STORED_HERE": "${STORED_ENV}"}),
        "typed": {"url": f"{at}/typed", "headers": headers},
        "stored_basic": {"url": f"{at}/stored-basic", "auth": basic},
        "stored_echo": {"url": f"{at}/echo?q=${{STORED_QUERY}}", "headers": {"X-Own": "${STORED_ECHO}"}},
        "person": {
            "url": f"{at}/echo/401",
            "auth": {"type": "oauth", **away, "clientSecret": "${input:client-secret}"},
        },
        "machine": {
            "url": f"{at}/echo/401",
            "auth": {"type": "client_credentials", **away, "clientSecret": "${MACHINE_SECRET}"},
        },
        "stored_word": {"command": sys.executable, "args": ["-c", SAYS_ITS_WORDS, "${STORED_WORD}"]},
    }


def use_everything(scene: Scene, daemon: Daemon) -> None:
    trail = scene.trail
    trail.plant("owner token", daemon.token, *(f"{when} file t/state/owner.token" for when in ("live", "ended")))
    tokens = _make_agents(scene)
    _call_every_way(scene, daemon, tokens)
    _send_bad_credentials(scene, daemon, tokens)
    _wait_for_approvals(scene, daemon, tokens)
    _run_every_command(scene, *(["--json"] if scene.env["TOOLCRIB_STORE"].startswith("postgresql") else []))


def _make_agents(scene: Scene) -> dict[str, str]:
    mint = scene.mint
    replaced = mint("replaced token", "agent", "add", "worker", "--profile", "developer")
    tokens = {
        "worker": mint("worker token", "agent", "rotate", "worker"),
        "weak": mint("weak token", "agent", "add", "weak", "--profile", "nothing"),
        "asked": mint("asked token", "agent", "add", "asked", "--profile", "nothing"),
        "removed": mint("removed token", "agent", "add", "short", "--profile", "developer"),
        "replaced": replaced,
    }
    for name, agent in (("worker token", "worker"), ("weak token", "weak"), ("asked token", "asked")):
        scene.trail.lawful += [(name, f"{when} file t/state/agents/{agent}/") for when in ("live", "ended")]
    scene.run("agent", "remove", "short").ok()
    scene.run("allow", "asked", "leaky:note", "--ask").ok()
    return tokens


def _call_every_way(scene: Scene, daemon: Daemon, tokens: dict[str, str]) -> None:
    """Calls that succeed, fail, are denied, are wrong, and take too long, each with secrets in them."""
    plant, trail = scene.trail.plant, scene.trail
    given = {
        "api_key": plant("argument api_key"),
        "nested": {"list": [plant("argument nested")], "Authorization": f"Bearer {plant('argument bearer')}"},
        "text": f"use {plant('argument text')} here, and {tokens['worker']} and {trail.secrets['env value']}",
        "mutter": f"{tokens['worker']} {tokens['weak']} {daemon.token} {trail.secrets['env value']}",
    }
    with_secret, failed = {"say": plant("result")}, {"fail": plant("tool error")}
    for era in ("modern", "legacy"):
        with AgentClient(daemon, "worker", tokens["worker"], era, conversation=f"work-{era}") as worker:
            for server in ("leaky", "other", "web", "basic", "keyed", "filed", "stored", "typed", "stored_basic"):
                answer = worker.call(f"{server}_note", nonce=f"{server}-{era}", **given, **with_secret)
                assert not refusal(scene.answered("ok", answer, "result"))
            answer = worker.call("leaky_note", **given, **failed)
            assert refusal(scene.answered("tool error", answer, "tool error"))
            assert "did not answer within" in refusal(
                scene.answered("slow", worker.call("slow_note", **given, nonce="slow", hold=True))
            )
            for tool in (
                "gone_note",
                "broken_note",
                "stored_echo_note",
                "machine_note",
                tokens["worker"],
                f"leaky_{tokens['worker']}",
            ):
                scene.answered("no tool", worker.call(tool, **given), "worker token")
            answer = worker.call("leaky_note", nonce={"is": trail.secrets["argument text"]})
            assert "must be of type string" in refusal(scene.answered("invalid", answer, "argument text"))
        with AgentClient(daemon, "weak", tokens["weak"], era) as weak:
            assert "may not use" in refusal(scene.answered("denied", weak.call("leaky_note", **given)))
    # The servers did receive the secrets.
    seen = [call["arguments"] for call in scene.notes["leaky"].calls()]
    assert {each["api_key"] for each in seen} == {given["api_key"]}
    _check_what_the_web_saw(scene)
    path, headers = next(seen for seen in reversed(scene.web.seen) if seen[0].startswith("/mcp"))
    assert quote(trail.secrets["query token"], safe="") in path
    assert headers["x-api-key"] == trail.secrets["header"]
    assert headers["authorization"] == f"Bearer {trail.secrets['bearer']}"
    assert not [token for token in tokens.values() if token in repr(scene.web.seen)]


def _check_what_the_web_saw(scene: Scene) -> None:
    """Each secret reached the server that it is meant for, and no other."""
    secret = scene.trail.secrets

    def as_basic(password: str) -> str:
        return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()

    meant = {
        "/basic": ("authorization", as_basic(secret["basic password"])),
        "/keyed": ("x-own", secret["api key"]),
        "/filed": ("authorization", f"Bearer {secret['token file']}"),
        "/typed": ("x-typed", secret["stored input"]),
        "/stored-basic": ("authorization", as_basic(secret["stored password"])),
        "/echo?q=": ("x-own", secret["stored echoed header"]),
    }
    for start, (header, value) in meant.items():
        assert {headers.get(header) for path, headers in scene.web.seen if path.startswith(start)} == {value}
        assert {path[: len(start)] for path, headers in scene.web.seen if headers.get(header) == value} == {start}


LISTING = ("X-Toolcrib-Listing", "X-Toolcrib-Without")


def _send_bad_credentials(scene: Scene, daemon: Daemon, tokens: dict[str, str]) -> None:
    """Invalid credentials, and credentials in the wrong place."""
    trail, token = scene.trail, tokens["worker"]
    invented = trail.plant("invented token", f"tcb_{secrets.token_urlsafe(32)}")
    for name, bad in (("removed", tokens["removed"]), ("replaced", tokens["replaced"]), ("invented", invented)):
        answer = scene.answered(name, AgentEndpoint(daemon, bad).modern("tools/list"))
        assert answer.status == 401
    for header in ("X-Toolcrib-Agent", "X-Toolcrib-Conversation", *LISTING, "Mcp-Session-Id", "Origin", "X-Other"):
        door = AgentEndpoint(daemon, token, (header, token))
        scene.answered(f"token in {header}", door.modern("tools/list"))
        scene.answered(f"call with token in {header}", door.call("leaky_note", {"nonce": "label"}))
    door = AgentEndpoint(daemon, token)
    body = legacy_request("tools/list")
    for target in (f"/mcp?token={token}", f"/{token}", f"/mcp/{token}?access_token={daemon.token}"):
        scene.answered("token in the path", door.ask(door.usual(body), body, target=target))
    scene.answered("token as a method", door.modern(token), "worker token")
    scene.answered("token in a notice", door.ask(door.usual(b := notice(token, {token: token})), b))
    scene.answered("token in no JSON", door.ask(door.usual(b := b"{" + token.encode()), b))
    scene.answered("token twice", door.ask([*door.usual(body), door.auth], body))


def _wait_for_approvals(scene: Scene, daemon: Daemon, tokens: dict[str, str]) -> None:
    owner, trail = Owner(daemon), scene.trail
    arguments = {
        "api_key": trail.secrets["argument api_key"],
        "headers": {"Authorization": f"Bearer {trail.secrets['argument bearer']}"},
        "text": f"{tokens['asked']} {tokens['worker']} {trail.secrets['env value']} {daemon.token}",
    }
    # The owner sees everything except Toolcrib's own secrets.
    trail.lawful += [(f"argument {name}", "cli out: approvals") for name in ("api_key", "bearer")]
    for word in ("approve", "refuse"):
        with AgentClient(daemon, "asked", tokens["asked"], "modern") as asked:
            asked.send_call("leaky_note", nonce=f"asked {word}", **arguments)
            (waiting,) = wait_for(lambda: owner.say("approval:list")["approvals"], "the question")
            scene.run("approvals").ok()
            shown = scene.run("approvals", "--json").ok().json
            assert "asked " + word in json.dumps(shown)
            scene.run(word, waiting["id"]).ok()
            answer = scene.answered(f"asked {word}", asked.answer())
            assert (nonce_of(answer) == f"asked {word}") == (word == "approve")


COMMANDS = """
status; servers; tools; logs; logs leaky; logs broken; logs gone; config show; config check; agent list
agent show worker; agent show nobody; profile list; profile show developer; why worker leaky:note nonce=x
why weak leaky:note; why weak leaky:nothing; approvals; sessions; audit; audit --agent worker; audit --agent nobody
audit verify; call leaky_note nonce=cli; call broken_note; call gone_note; restart broken; restart gone
connect claude; connect codex; connect gemini; connect claude --agent weak
secret list; secret list --json; secret remove NOBODY; secret migrate --to file; servers show stored; servers show echo
servers show stored_echo; servers show machine; servers show person; servers show worded; restart echo
restart stored_echo; restart machine; restart person; restart worded; restart stored_word
logs worded; logs stored_word; logs stored
call stored_note nonce=cli; call stored_echo_note; call machine_note; call person_note; reload; config check --json
secret remove UNUSED --yes; tools stored; status --json; servers --json
"""


def _run_every_command(scene: Scene, *more: str) -> None:
    for line in COMMANDS.strip().replace("\n", ";").split(";"):
        done = scene.run(*line.split(), *more)
        assert "Traceback" not in done.err, done
        assert done.exit_code != 2, f"{line} is no command: {done.err}"
    plant, mistakes = scene.trail.plant, []
    mistakes.append((["a b"], plant("value of a wrong name")))
    mistakes.append((["A"], plant("value with a control character") + "\x1b"))
    mistakes.append((["A", plant("value as an argument")], ""))
    for words, value in mistakes:
        done = scene.cli("secret", "set", *words, *more, env=scene.env, stdin=value)
        scene.trail.keep("cli: secret set", done.out + done.err)
        assert done.exit_code == 2, done


def _look_at_processes(scene: Scene, watch: Watch) -> None:
    for words in watch.words.values():
        scene.trail.keep(f"arguments of {'worded' if 'SAYS_ITS_WORDS' in words else 'the daemon and others'}", words)
    for pid, environ in watch.environs.items():
        words = watch.words[pid]
        of = next((name for name in scene.notes if f"seen-{name}" in words), "")
        place = f"environment of {of or ('broken' if 'BROKEN' in words else 'the daemon')}"
        scene.trail.keep(place, environ)
    scene.trail.lawful += [
        ("env value", "environment of leaky"),
        ("inherited", "environment of leaky"),
        ("inherited", "environment of the daemon"),
        ("broken env", "environment of broken"),
        ("stored env", "environment of stored"),
        ("argument of a program", "arguments of worded"),
        ("stored argument", "arguments of worded"),
    ]
    assert scene.trail.has("environment of leaky", "env value")


@pytest.mark.timeout(240)
@pytest.mark.usual(engine="postgresql")
def test_secrets_are_only_where_their_owner_put_them(
    daemon: StartDaemon,
    cli: Cli,
    toolcrib_home: Home,
    store_env: dict[str, str],
    store_url: str,
    web: WebWitness,
    request: pytest.FixtureRequest,
) -> None:
    scene = Scene(trail=Trail(), home=toolcrib_home, cli=cli, env=store_env, notes={}, web=web)
    trail = scene.trail
    inherited = trail.plant("inherited")
    if store_url.startswith("postgresql"):
        trail.plant("store password", PASSWORD, "environment of the daemon")
    config = plan(scene)
    watch = Watch(home=toolcrib_home)
    started = daemon(config, env={**store_env, "TC_FROM_ENV": inherited, "TOOLCRIB_LOG_LEVEL": "debug"})
    started.wait_until_ready(
        "leaky", "other", "slow", "web", "basic", "keyed", "filed", "stored", "typed", "stored_basic"
    )
    with watch.running():
        use_everything(scene, started)
        watch.look()
    rows = Owner(started).audit()
    trail.keep("the audit log", json.dumps(rows))
    assert {row["outcome"] for row in rows} >= {"ok", "tool_error", "denied", "invalid", "timeout", "unknown"}
    assert all(row["arguments"] is None for row in rows)
    scene.keep_files("live")
    trail.keep("the database", _dump(request, store_url))
    started.stop()
    trail.keep("the daemon's output", started.output.read_bytes())
    scene.keep_files("ended")
    _look_at_processes(scene, watch)
    assert len(trail.secrets) >= 30
    assert "/echo/token" in {path for path, _ in web.seen}, "the client's secret was sent, and repeated in an error"
    # The search finds secrets where they are allowed.
    assert trail.has("live file t/state/agents/weak/token", "weak token")
    assert trail.has("live file t/config.json", "header")
    assert [place for place in trail.places if place.startswith("live file t/state/servers/leaky")]
    assert trail.found() == []
    loose = [path for path in toolcrib_home.toolcrib.rglob("token") if path.stat().st_mode & 0o077]
    assert loose == []


def _dump(request: pytest.FixtureRequest, store_url: str) -> bytes:
    """Every row of every table; for SQLite, the bytes of its files."""
    if store_url.startswith("postgresql"):
        server: Postgres = request.getfixturevalue("postgres")
        dumped = server.sql("select database_to_xml(true, false, '')", store_url.rpartition("/")[2])
        assert "<audit>" in dumped
        return dumped.encode()
    files = sorted(Path(store_url).parent.glob(f"{Path(store_url).name}*"))
    assert files
    return b"".join(path.read_bytes() for path in files)


def test_values_in_the_audit_log_contain_no_secrets(
    daemon: StartDaemon, cli: Cli, toolcrib_home: Home, tmp_path: Path
) -> None:
    """`audit_values` stores the arguments of calls, but no secrets."""
    trail = Trail()
    notes = Notes(tmp_path / "seen")
    known = trail.plant("env value")
    config = {"servers": {"w": notes.server("note", env={"API_KEY": known})}, "audit_values": True}
    started = daemon(config)
    started.wait_until_ready("w")
    token = trail.plant("token", Owner(started).add("worker", "w:*"))
    arguments = {
        "nonce": "a plain word",
        "api_key": trail.plant("api_key"),
        "deep": [{"password": trail.plant("password")}, {"Authorization": f"Bearer {trail.plant('bearer')}"}],
        "text": f"a {known} b {token} c {started.token}",
        "encoded": base64.b64encode(f"x{known}".encode()).decode(),
        "url": f"https://me:{quote(trail.plant('url password'), safe='')}@example.org/?q={quote(known, safe='')}",
    }
    trail.plant("owner token", started.token)
    with AgentClient(started, "worker", token, "modern") as worker:
        assert nonce_of(worker.call("w_note", **arguments)) == arguments["nonce"]
    assert notes.calls()[-1]["arguments"] == arguments
    rows = [row for row in Owner(started).audit() if row["tool"] == "w:note"]
    assert [row["arguments"]["nonce"] for row in rows if row["kind"] == "intent"] == ["a plain word"]
    trail.keep("the audit log", json.dumps(rows))
    for words in (("audit",), ("audit", "--json")):
        done = cli(*words).ok()
        trail.keep(f"cli {words}", done.out + done.err)
    for path in (toolcrib_home.toolcrib / "state").rglob("*"):
        if path.is_file() and path.name not in ("token", "owner.token"):
            trail.keep(f"file {path.name}", path.read_bytes())
    assert trail.found() == []
