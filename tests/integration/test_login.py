"""`toolcrib login`, `logout` and `accounts` with a real daemon, and without one."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from parts.agent_clients import AgentClient, Owner, refusal
from parts.authorization_server import READ, WRITE, AuthorizationServer
from parts.browser import Browser, running
from parts.canary import Trail, Watch
from parts.daemon import PROGRAM, Cli, Home, StartDaemon
from parts.fleet import NotRun
from parts.report import not_run
from parts.signing_in import answer_of, logging_in, open_address, sign_in
from parts.waiting import wait_for

pytestmark = pytest.mark.req("BNS-6")

NEEDED = "Server 'linear' needs a sign-in: run `toolcrib login linear`."


@pytest.fixture
def authorization() -> Iterator[AuthorizationServer]:
    with AuthorizationServer.running() as running:
        yield running


@pytest.fixture(params=["daemon", "alone"])
def anywhere(request: pytest.FixtureRequest, daemon: StartDaemon) -> str:
    """With a daemon, and without one."""
    if request.param == "daemon":
        daemon()
    return str(request.param)


def test_from_the_401_to_the_logout(
    authorization: AuthorizationServer, cli: Cli, toolcrib_home: Home, anywhere: str
) -> None:
    added = cli("add", "linear", "--url", authorization.url)
    assert (added.exit_code, added.out.startswith("Added linear to "), added.err) == (6, True, f"{NEEDED}\n")
    assert NEEDED in cli("servers").ok().out
    if anywhere == "daemon":
        assert f"last error:  {NEEDED}" in cli("servers", "show", "linear").ok().out
    refused = cli("call", "linear:whoami")
    assert (refused.exit_code, refused.err) == (6, f"Error: {NEEDED} The call did not run.\n")
    assert cli("accounts").ok().out == "You are signed in nowhere.\n"

    done = sign_in(toolcrib_home, "linear")
    assert (done.exit_code, done.out.splitlines()[-2:]) == (
        0,
        [f"Signed in at linear with {READ}.", "It is ready: 3 tools."],
    )
    assert cli("call", "linear:whoami").ok().out == "sign-in 1\n"
    (account,) = cli("accounts", "--json").ok().json["accounts"]
    assert account.pop("signed_in_at") < account.pop("expires_at")
    assert account == {
        "server": "linear",
        "url": authorization.url,
        "issuer": authorization.issuer,
        "scopes": [READ],
        "renewed": True,
        "state": "ok",
        "reason": "",
        "in_use": True,
    }
    shown = cli("servers", "show", "linear").ok().out
    assert "account:     signed in since " in shown
    assert f", {READ}, expires: in 59m " in shown

    assert cli("logout", "linear").ok().out == f"Signed out of linear ({authorization.issuer}).\n"
    assert authorization.revoked == [*authorization.tokens("refresh"), *authorization.tokens("access")]
    assert cli("call", "linear:whoami").err == f"Error: {NEEDED} The call did not run.\n"
    assert (cli("logout", "linear").exit_code, cli("accounts", "--json").json["accounts"]) == (4, [])

    rows = [(row["outcome"], row["detail"]) for row in cli("audit", "--json").ok().json["entries"]]
    about = {"server": "linear", "issuer": authorization.issuer}
    assert ("signed in", {**about, "scopes": [READ]}) in rows
    assert ("ok", {"account": "linear", "issuer": authorization.issuer}) in rows
    assert ("signed out", {**about, "revoked": "yes"}) in rows
    assert rows.count(("unavailable", None)) == 2
    assert "signed in: server linear" in cli("audit").ok().out
    assert f"; signed in at {authorization.issuer}" in cli("audit", "-v").ok().out
    cli("audit", "verify").ok()


def test_two_accounts_of_one_server_are_two_entries_with_rules_of_their_own(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    owner = Owner(started := daemon())
    for name in ("linear@work", "linear@home"):
        cli("add", name, "--url", authorization.url)
        sign_in(toolcrib_home, name)
    token = cli("agent", "add", "bot", "--profile", "nothing", "--json").ok().json["token"]
    cli("allow", "bot", "linear@work:*").ok()
    cli("deny", "bot", "linear@*:write").ok()
    assert cli("why", "bot", "linear@work:whoami").ok().out.startswith("bot (nothing) may use linear@work:whoami")
    assert cli("why", "bot", "linear@home:whoami").exit_code == 5
    with AgentClient(started, "bot", token, "modern") as bot:
        assert "sign-in 1" in bot.call("linear_work_whoami").body.decode()
        assert "bot may not use linear@home:whoami" in refusal(bot.call("linear_home_whoami"))
        assert "deny linear@*:write" in refusal(bot.call("linear_work_write"))
    accounts = [row["detail"] for row in owner.audit() if row["outcome"] == "ok" and row["agent"] == "bot"]
    assert accounts == [{"account": "linear@work", "issuer": authorization.issuer}]
    assert cli("call", "linear@home:whoami").ok().out == "sign-in 2\n"
    cli("logout", "linear@work").ok()
    with AgentClient(started, "bot", token, "legacy") as bot:
        needed = "Server 'linear@work' needs a sign-in: run `toolcrib login linear@work`. The call did not run."
        assert refusal(bot.call("linear_work_whoami")) == needed
    assert cli("call", "linear@home:whoami").ok().out == "sign-in 2\n"


def test_a_sign_in_connects_the_server_in_all_projects_that_use_the_account(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    other = toolcrib_home.path / "other"
    (other / ".toolcrib").mkdir(parents=True)
    # After one attempt, nothing but a restart connects it.
    entry = {"url": authorization.url, "retry": {"max_attempts": 1}}
    (other / ".toolcrib" / "config.json").write_text(json.dumps({"servers": {"linear": {**entry, "call_timeout": 7}}}))
    started = daemon({"servers": {"linear": entry}})
    cli("trust", "--yes", cwd=other).ok()

    def state() -> str:
        (row,) = started.command("server:list", in_project=other)["servers"]
        return str(row["state"])

    wait_for(lambda: state() == "failed", "the server in the other project to fail")
    sign_in(toolcrib_home, "linear").ok()
    assert state() == "ready"
    assert cli("call", "linear:whoami", cwd=other).ok().out == "sign-in 1\n"
    cli("logout", "linear").ok()
    wait_for(lambda: state() == "failed", "the server in the other project to be signed out")


def test_a_call_that_lacks_a_permission_names_it_and_the_next_sign_in_asks_for_it(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    daemon()
    cli("add", "linear", "--url", authorization.url)
    sign_in(toolcrib_home, "linear")
    needed = f"Server 'linear' needs another permission ({WRITE}): run `toolcrib login linear`. The call did not run."
    assert cli("call", "linear:write").err == f"Error: {needed}\n"
    assert f"lacks a permission ({WRITE})" in cli("accounts").ok().out
    assert sign_in(toolcrib_home, "linear").out.splitlines()[-2] == f"Signed in at linear with {READ} {WRITE}."
    cli("call", "linear:write").ok()
    assert f"with {READ}." in sign_in(toolcrib_home, "linear", "--scope", READ).out


@pytest.mark.usefixtures("anywhere")
def test_an_address_from_a_browser_elsewhere_is_pasted(
    authorization: AuthorizationServer, cli: Cli, toolcrib_home: Home
) -> None:
    cli("add", "linear", "--url", authorization.url)
    with logging_in(toolcrib_home, "linear", "--paste", stdin=subprocess.PIPE) as login:
        answer = answer_of(address := login.address())
        login.type(address)
        login.hear("That is not it: the address begins with http://127.0.0.1:")
        login.type(answer.replace("state=", "state=x"))
        login.hear("That is the answer to another sign-in.")
        login.type(answer)
        assert login.finish().ok().out.endswith("It is ready: 3 tools.\n")
    # The browser may run here after all.
    with logging_in(toolcrib_home, "linear", "--paste", stdin=subprocess.PIPE) as login:
        open_address(login.address())
        assert login.finish().ok().out.endswith("It is ready: 3 tools.\n")


@pytest.mark.usefixtures("anywhere")
def test_pasting_nothing_cancels_the_sign_in(authorization: AuthorizationServer, cli: Cli, toolcrib_home: Home) -> None:
    cli("add", "linear", "--url", authorization.url)
    with logging_in(toolcrib_home, "linear", "--paste") as login:
        done = login.finish()
    assert (done.exit_code, "No address was pasted, so the sign-in was cancelled." in done.out) == (2, True)


@pytest.mark.usefixtures("anywhere")
def test_ctrl_c_ends_a_sign_in_and_the_next_one_can_begin(
    authorization: AuthorizationServer, cli: Cli, toolcrib_home: Home
) -> None:
    cli("add", "linear", "--url", authorization.url)
    with logging_in(toolcrib_home, "linear", "--no-browser") as login:
        redirect = parse_qs(urlsplit(login.address()).query)["redirect_uri"][0]
        login.hear("waiting for the browser… ")
        login.process.send_signal(signal.SIGINT)
        done = login.finish()
    assert (done.exit_code, done.out.splitlines()[-1]) == (130, "The sign-in at linear was cancelled.")
    port = urlsplit(redirect).port
    assert port is not None
    wait_for(lambda: _is_closed(port), "the listener to close")
    sign_in(toolcrib_home, "linear").ok()


def _is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_second_sign_in_at_the_same_server_is_refused_while_one_waits(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    daemon()
    cli("add", "linear", "--url", authorization.url)
    with logging_in(toolcrib_home, "linear", "--no-browser") as login:
        address = login.address()
        refused = cli("login", "linear", "--no-browser")
        assert (refused.exit_code, "A sign-in at 'linear' is in progress." in refused.err) == (8, True)
        open_address(address)
        login.finish().ok()


def test_a_sign_in_that_the_server_refuses_says_why_and_is_in_the_audit_log(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    authorization.answers["token"] = "endless"
    owner = Owner(daemon())
    cli("add", "linear", "--url", authorization.url)
    done = sign_in(toolcrib_home, "linear")
    assert (done.exit_code, "Signing in at 'linear' failed: " in done.out) == (6, True)
    (row,) = [row for row in owner.audit() if row["outcome"] == "sign-in failed"]
    assert row["detail"]["server"] == "linear"
    assert "more than 1024 KB" in row["detail"]["reason"]


def test_a_logout_deletes_the_account_even_if_its_tokens_cannot_be_revoked(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    daemon()
    cli("add", "linear", "--url", authorization.url)
    sign_in(toolcrib_home, "linear")
    cli("remove", "linear").ok()
    assert "No server here uses the account of linear at " in cli("accounts").ok().err
    with authorization.down():
        done = cli("logout", "linear").ok()
    assert done.err.startswith("Its tokens are deleted here, but were not revoked: ")
    assert done.err.endswith("Revoke Toolcrib's access on the server's website.\n")
    assert cli("accounts", "--json").json["accounts"] == []


def test_after_a_logout_no_request_has_the_token_even_if_its_revocation_hangs_or_is_cancelled(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    owner = Owner(daemon())
    cli("add", "linear", "--url", authorization.url)
    sign_in(toolcrib_home, "linear").ok()
    words = [str(PROGRAM), "logout", "linear"]
    with (
        authorization.holding("revoke"),
        subprocess.Popen(
            words, env=toolcrib_home.environ(), cwd=toolcrib_home.project, stderr=subprocess.DEVNULL
        ) as process,
    ):
        wait_for(lambda: authorization.waiting("revoke"), "the revocation")
        assert cli("call", "linear:whoami").err == f"Error: {NEEDED} The call did not run.\n"
        process.send_signal(signal.SIGINT)
        wait_for(lambda: [row for row in owner.audit() if row["outcome"] == "signed out"], "the entry in the audit log")
    (row,) = [row for row in owner.audit() if row["outcome"] == "signed out"]
    assert row["detail"]["revoked"] == "the command was cancelled"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"command": "true"}, "'x' is a program on this machine, so there is nothing to sign in at."),
        ({"url": "http://example.invalid/mcp"}, "'x' has an address without TLS, so no tokens are sent to it."),
        *(
            (
                {"url": url, "headers": {"Authorization": "Bearer mine"}},
                "The entry of 'x' has other credentials: `auth` or an Authorization header.",
            )
            for url in ("https://example.invalid/mcp", "http://127.0.0.1:9/mcp")
        ),
    ],
)
def test_a_server_that_has_no_sign_in_says_what_to_use_instead(
    entry: dict[str, object], why: str, cli: Cli, toolcrib_home: Home
) -> None:
    toolcrib_home.write_config({"servers": {"x": entry}})
    refused = cli("login", "x")
    assert (refused.exit_code, why in refused.err) == (2, True), refused.err
    assert cli("login", "nobody").exit_code == 4


def test_client_credentials_sign_in_without_a_person(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    authorization.add_client("robot", "robots-secret")
    auth = {"type": "client_credentials", "client_id": "robot", "client_secret": "robots-secret"}
    daemon({"servers": {"linear": {"url": authorization.url, "auth": auth}}})
    done = cli("login", "linear").ok()
    assert "Signed in at linear" in done.out
    assert "Open this address" not in done.err
    (account,) = cli("accounts", "--json").ok().json["accounts"]
    assert account["renewed"] is True
    refused = cli("logout", "linear")
    assert (refused.exit_code, "signs in by itself" in refused.err) == (2, True)


BROWSER = """#!{python}
import sys, urllib.request
open({seen!r}, "a").write(repr(sys.argv[1:]) + "\\n")
print("noise", flush=True)
urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(sys.argv[1]).close()
"""


def browser(folder: Path, name: str) -> tuple[Path, Path]:
    """A program that opens the address in its arguments, and the file in which it notes them."""
    program, seen = folder / name, folder / f"{name}.seen"
    program.write_text(BROWSER.format(python=sys.executable, seen=str(seen)))
    program.chmod(0o755)
    return program, seen


@pytest.mark.usefixtures("anywhere")
def test_the_browser_gets_the_address_as_one_argument(
    authorization: AuthorizationServer, cli: Cli, toolcrib_home: Home, tmp_path: Path
) -> None:
    program, seen = browser(tmp_path, "firefox")
    cli("add", "linear", "--url", authorization.url)
    done = cli("login", "linear", "--json", env={"BROWSER": str(program)}).ok()
    assert done.json["account"]["state"] == "ok"
    (address,) = [line for line in done.err.splitlines() if line.startswith("http")]
    assert seen.read_text() == f"{[address]!r}\n"


def test_a_browser_that_would_take_over_the_terminal_is_not_opened(
    authorization: AuthorizationServer, cli: Cli, toolcrib_home: Home, tmp_path: Path
) -> None:
    program, seen = browser(tmp_path, "w3m")
    cli("add", "linear", "--url", authorization.url)
    with logging_in(toolcrib_home, "linear", env={"BROWSER": str(program)}) as login:
        open_address(login.address())
        assert login.finish().ok().out.startswith("Open this address in your browser:\n")
    assert not seen.exists()


def test_no_token_leaves_the_vault(
    authorization: AuthorizationServer, daemon: StartDaemon, cli: Cli, toolcrib_home: Home
) -> None:
    trail, watch = Trail(), Watch(home=toolcrib_home)
    started = daemon()
    with watch.running():
        for words in (("add", "linear", "--url", authorization.url), ("call", "linear:whoami")):
            done = cli(*words)
            trail.keep(f"cli {words[0]}", done.out + done.err)
        trail.keep("login", sign_in(toolcrib_home, "linear").ok().out)
        authorization.expire()
        for line in (
            "call linear:whoami",
            "call linear:write",
            "accounts --json",
            "servers show linear --json",
            "audit",
        ):
            done = cli(*line.split())
            trail.keep(line, done.out + done.err)
        trail.keep("logout", json.dumps(cli("logout", "linear", "--json").ok().json))
        watch.look()
    started.stop()
    for kind in ("access", "refresh", "code"):
        for number, token in enumerate(authorization.tokens(kind)):
            trail.plant(f"{kind} token {number}", token)
    for name, client in authorization.clients.items():
        trail.plant(f"secret of {name}", client["secret"])
    assert len(authorization.tokens("access")) == 2
    trail.keep("the daemon's output", started.output.read_bytes())
    for path in sorted(toolcrib_home.path.rglob("*")):
        if path.is_file():
            trail.keep(f"file {path.relative_to(toolcrib_home.path)}", path.read_bytes())
    for pid, words in watch.words.items():
        trail.keep(f"process {pid}", words.encode() + watch.environs[pid])
    assert watch.words
    assert trail.found() == []


@pytest.fixture
def chromium() -> Iterator[Browser]:
    try:
        with running() as started:
            yield started
    except NotRun as missing:
        not_run("Chromium", str(missing))


@pytest.mark.parametrize("answer", ["allow", "deny"])
def test_a_person_answers_in_a_real_browser(
    authorization: AuthorizationServer,
    daemon: StartDaemon,
    cli: Cli,
    toolcrib_home: Home,
    chromium: Browser,
    answer: str,
) -> None:
    authorization.consent = True
    daemon()
    cli("add", "linear", "--url", authorization.url)
    with logging_in(toolcrib_home, "linear", env={"BROWSER": str(chromium.program)}) as login:
        login.address()
        chromium.click(f"button[value={answer}]")
        done = login.finish()
    wait_for(lambda: chromium.text().startswith("Toolcrib has received the answer."), "the listener's page")
    if answer == "allow":
        assert done.exit_code == 0, done.out
        assert cli("call", "linear:whoami").ok().out == "sign-in 1\n"
    else:
        assert (done.exit_code, "access_denied: The person said no." in done.out) == (6, True), done.out
        assert cli("accounts", "--json").json["accounts"] == []
