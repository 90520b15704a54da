"""`login` and `accounts` on the command line, with a stand-in for what they start."""

import subprocess
import sys
import time
import webbrowser

import pytest

from toolcrib.cli import account_commands
from toolcrib.cli.app import run

pytestmark = pytest.mark.req("BNS-6")

ACCOUNT = {
    "server": "linear",
    "url": "https://mcp.example/mcp",
    "issuer": "https://login.example",
    "scopes": ["read", "write"],
    "signed_in_at": 1_790_000_000.0,
    "expires_at": None,
    "renewed": False,
    "state": "ok",
    "reason": "",
    "in_use": True,
}


@pytest.mark.parametrize(
    ("address", "is_opened"),
    [
        ("https://login.example/authorize?a=b&state=$(id)`id`", True),
        ("http://127.0.0.1:8000/authorize?a=b", True),
        ("http://login.example/authorize", False),
        ("file:///etc/passwd", False),
        ("javascript:alert(1)", False),
        ("--help", False),
    ],
)
def test_only_web_addresses_are_opened_and_none_reaches_a_shell(address, is_opened, monkeypatch, capsys):
    opened = []
    found = {"state": "ready", "tools": 1, "account": ACCOUNT}

    def perform(_name, _params, *, on_event, **_):
        on_event({"open": address, "redirect": "http://127.0.0.1:1/callback"})
        return found

    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser(sys.executable))
    monkeypatch.setattr(account_commands, "perform", perform)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: opened.append((command[-1], how.get("shell"))))
    assert run(["login", "linear"]) == 0
    said = capsys.readouterr()
    assert opened == ([(address, None)] if is_opened else [])
    assert said.err.splitlines()[-1] == address
    assert said.out == "Signed in at linear with read write.\nIt is ready: 1 tool.\n"


def test_a_browser_that_does_not_exist_is_not_announced(monkeypatch, capsys):
    def perform(_name, _params, *, on_event, **_):
        on_event({"open": "https://login.example/authorize", "redirect": "http://127.0.0.1:1/callback"})
        return {"state": "ready", "tools": 1, "account": ACCOUNT}

    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("/no/such/browser"))
    monkeypatch.setattr(account_commands, "perform", perform)
    assert run(["login", "linear"]) == 0
    assert capsys.readouterr().err.startswith("Open this address in your browser:\n")


def test_accounts_shows_what_a_person_has_to_do(monkeypatch, capsys):
    rows = [
        {**ACCOUNT, "expires_at": time.time() + 86_399, "renewed": True},
        {**ACCOUNT, "server": "old", "in_use": False, "state": "needs a sign-in", "reason": "invalid_grant"},
        {**ACCOUNT, "server": "over", "expires_at": 1.0},
    ]
    found = {"accounts": rows, "problems": ["/a: it is damaged."]}
    monkeypatch.setattr(account_commands, "perform", lambda _: found)
    assert run(["accounts"]) == 0
    said = capsys.readouterr()
    heading, *lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert heading == "server state scopes expires signed in issuer"
    assert [line.partition(" 2026-")[0] for line in lines] == [
        "linear ok read write in 23h 59m, renewed by itself",
        "old needs a sign-in (invalid_grant) read write unknown",
        "over ok read write expired",
    ]
    assert said.err.splitlines() == [
        "No server here uses the account of old at https://mcp.example/mcp.",
        "`toolcrib logout old` deletes every account of this name.",
        "Problem: /a: it is damaged.",
    ]


def test_commands_load_neither_the_sdk_nor_openssl():
    code = "import sys, toolcrib.commands.all; print({'mcp', 'cryptography', 'jwt', 'uvicorn'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_sign_in_and_a_connection_load_the_sdk_at_the_same_time():
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
from toolcrib.servers.account import _load_sign_in
from toolcrib.servers.supervisor import _load_transports
begin = threading.Barrier(2)
def loaded(load):
    begin.wait()
    return load()
with ThreadPoolExecutor(2) as threads:
    print(all(threads.map(loaded, (_load_sign_in, _load_transports))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
