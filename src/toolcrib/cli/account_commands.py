"""`login`, `logout`, `accounts`: signing in at servers.

In: command-line arguments; with --paste, the address from the browser. Out: an exit code, and a page in the browser.
The sign-in runs where the servers run: in the daemon, or in this process.
"""

from __future__ import annotations

import http.client
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import counted, hint, moment, printed, say, table
from toolcrib.cli.perform import perform
from toolcrib.cli.server_commands import ServerName, account_end, account_state
from toolcrib.errors import ServerUnavailable, UsageError
from toolcrib.signals import with_default_signals

_CONSOLE_BROWSERS = frozenset({"www-browser", "links", "elinks", "lynx", "w3m"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LONGEST_ADDRESS = 64 * 1024
_ANSWERS_WITHIN = 30.0
_COLUMNS = ("server", "state", "scopes", "expires", "signed in", "issuer")

commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def login(
    name: ServerName,
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help="Ask for this permission instead of the usual ones; repeatable."),
    ] = None,
    paste: Annotated[
        bool,
        typer.Option("--paste", help="For a browser on another machine: paste the address that it ends at."),
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address to open.")] = False,
    as_json: AsJson = False,
) -> int:
    """Sign in at a server in the browser. Exit code 6: the sign-in failed, or the server isn't responding."""
    pasting = _Pasting()

    def heard(event: dict[str, Any]) -> None:
        if "open" in event:
            _show(event["open"], opens=not (no_browser or paste))
            if paste:
                pasting.begin(event["redirect"])

    params = {"name": name, "scopes": scope or []}
    try:
        found = perform("account:login", params, timeout=None, on_event=heard, spinner=not paste)
    except KeyboardInterrupt:
        if pasting.ended:
            raise UsageError("No address was pasted, so the sign-in was cancelled.", remedy="Run it again.") from None
        hint(f"The sign-in at {name} was cancelled.")
        raise
    code = 0 if found["state"] in ("ready", "idle", "disabled") else ServerUnavailable.exit_code
    printed(found, as_json=as_json, exit_code=code)
    scopes = " ".join(found["account"]["scopes"])
    say(f"Signed in at {name}{f' with {scopes}' if scopes else ''}.")
    if code:
        hint(f"It isn't responding: {found['last_error'] or 'it is still connecting.'}")
    elif found["state"] != "disabled":
        say(f"It is ready: {counted(found['tools'], 'tool')}.")
    return code


def _show(url: str, *, opens: bool) -> None:
    """Opens the address in the browser, and prints it, because a browser may open where nobody sees it."""
    if opens and _is_web_address(url) and _has_browser():
        # Apart from this terminal: it neither ends with Ctrl-C nor prints anything here.
        command = with_default_signals([sys.executable, "-I", "-m", "webbrowser", url])
        subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
        hint("Your browser opens. If it doesn't, open this address:")
    else:
        hint("Open this address in your browser:")
    hint(url)


def _has_browser() -> bool:
    """Whether there is one on this desktop, or in the variable BROWSER, that doesn't need the terminal."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    name = getattr(found, "name", "")
    if isinstance(found, webbrowser.GenericBrowser) and shutil.which(name) is None:
        # It is the value of BROWSER, which nothing has checked.
        return False
    return Path(name).name not in _CONSOLE_BROWSERS


def _is_web_address(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


class _Pasting:
    """Reads the address to which a browser on another machine was redirected, and opens it here in its place."""

    def __init__(self) -> None:
        self._redirect = ""
        self.ended = False
        """Whether stdin ended without a usable address."""

    def begin(self, redirect: str) -> None:
        # The authorization server may demand a second try, with another listener.
        self._redirect, first = redirect, not self._redirect
        hint("Afterwards the browser shows an error, because it runs elsewhere. Paste the address of that page here:")
        if first:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # Not `sys.stdin`: a thread that waits in it would break the interpreter's exit.
        with open(0, "rb", buffering=0, closefd=False) as typed:
            while line := typed.readline(_LONGEST_ADDRESS):
                if (why := _refused(line.decode(errors="replace").strip(), self._redirect)) is None:
                    return
                hint(why)
        self.ended = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _refused(url: str, redirect: str) -> str | None:
    """Why the address is not the answer to this sign-in; None if the listener has taken it."""
    if not url.startswith(f"{redirect}?"):
        return f"That is not it: the address begins with {redirect}?"
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=_ANSWERS_WITHIN).close()
    except urllib.error.HTTPError:
        return "That is the answer to another sign-in. Open the address above, and paste the one that it leads to:"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"That address cannot be used: {error}."
    return None


@commands.command()
def logout(name: ServerName, *, as_json: AsJson = False) -> int:
    """Sign out of a server: delete its account here, and revoke its tokens at the authorization server."""
    found = printed(perform("account:logout", {"name": name}), as_json=as_json)
    for account in found["accounts"]:
        say(f"Signed out of {name} ({account['issuer']}).")
        if why := account["not_revoked"]:
            hint(f"Its tokens are deleted here, but were not revoked: {why}")
            hint("Revoke Toolcrib's access on the server's website.")
    return 0


@commands.command()
def accounts(*, as_json: AsJson = False) -> int:
    """List where you are signed in, with which scopes, and until when."""
    found = printed(perform("account:list"), as_json=as_json)
    rows = [
        (
            row["server"],
            account_state(row),
            " ".join(row["scopes"]),
            account_end(row),
            moment(row["signed_in_at"]),
            row["issuer"],
        )
        for row in found["accounts"]
    ]
    if rows:
        table(_COLUMNS, rows)
    else:
        say("You are signed in nowhere.")
        hint("Next: `toolcrib login NAME`.")
    for row in found["accounts"]:
        if not row["in_use"]:
            hint(f"No server here uses the account of {row['server']} at {row['url']}.")
            hint(f"`toolcrib logout {shlex.quote(row['server'])}` deletes every account of this name.")
    for problem in found["problems"]:
        hint(f"Problem: {problem}")
    return 0
