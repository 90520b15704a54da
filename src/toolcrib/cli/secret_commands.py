"""`secret`: values for `${NAME}` and `${input:NAME}` in the configuration.

In: command-line arguments, and values from a hidden prompt or stdin, never as arguments. Out: an exit code. `add` and
`trust` ask for missing values with the same prompt.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from toolcrib.cli.options import AsJson, read_stdin
from toolcrib.cli.output import confirmed, hint, printed, say, table, visible
from toolcrib.cli.perform import perform
from toolcrib.credentials.keys import KeyStore
from toolcrib.errors import UsageError

commands = typer.Typer(rich_markup_mode=None)
secret = typer.Typer(help="Store values for ${NAME} in the configuration, encrypted.")
commands.add_typer(secret, name="secret")

KEY_PLACES: dict[str, str] = {KeyStore.FILE: "a file beside them", KeyStore.KEYRING: "the system's keyring"}
_PROTECTS: dict[str, str] = {
    KeyStore.FILE: "Their key is in a file beside them: this protects a copy of a single entry, no more than that.",
    KeyStore.KEYRING: "Their key is in the system's keyring: this protects copies and backups of your files, no more "
    "than that. Your own programs can read both.",
}


@secret.command("set")
def set_secret(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Default: everything that the configuration needs and lacks.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Store a value for ${NAME} or ${input:NAME}. It is typed at a hidden prompt, or read from stdin.

    Servers that use it connect again at once. A variable NAME in Toolcrib's environment comes before it.
    """
    if name is not None:
        _say_stored(printed(_store(name, _value(name)), as_json=as_json))
        return 0
    if not sys.stdin.isatty():
        raise UsageError("A value from stdin needs a name.", remedy="Write: toolcrib secret set NAME")
    missing = perform("secret:list")["missing"]
    stored = typed(missing, quiet=as_json)
    printed(
        {"stored": stored, "missing": [one["name"] for one in missing if one["name"] not in stored]}, as_json=as_json
    )
    if not missing:
        say("Nothing is missing: every value that the configuration needs is set.")
    return 0


def typed(missing: Sequence[Mapping[str, Any]], *, quiet: bool = False) -> list[str]:
    """Asks for each value at the terminal and stores it. Returns the names of those that were given."""
    stored: list[str] = []
    if not missing or not sys.stdin.isatty():
        return stored
    if not quiet:
        hint("Missing values, stored encrypted as you type them. Press Enter to skip one.")
    for one in missing:
        if value := _prompted(one["name"], one.get("about", ""), one.get("servers", ())):
            found = _store(one["name"], value)
            stored.append(one["name"])
            if not quiet:
                _say_stored(found)
    return stored


def offer_missing() -> None:
    """Asks for what the configuration lacks, or names the command that does."""
    missing = perform("secret:list")["missing"]
    stored = typed(missing)
    for one in missing:
        if one["name"] not in stored:
            needed = f", which {' and '.join(one['servers'])} needs" if one["servers"] else ""
            hint(f"{one['name']}{needed}, is not set: run `toolcrib secret set {one['name']}`.")


def _store(name: str, value: str) -> dict[str, Any]:
    return perform("secret:set", {"name": name, "value": value})


def _value(name: str) -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        value = _prompted(name)
    else:
        # `echo` and most files end with a line break that is not part of the value.
        value = read_stdin().removesuffix("\n").removesuffix("\r")
    if not value:
        raise UsageError("The value is empty.", remedy=f"`toolcrib secret remove {name}` deletes a secret.")
    return value


def _prompted(name: str, about: str = "", servers: Sequence[str] = ()) -> str:
    details = "; ".join(filter(None, [about, f"for {', '.join(servers)}" if servers else ""]))
    try:
        return getpass.getpass(visible(f"{name}{f' ({details})' if details else ''}: "), stream=sys.stderr)
    except EOFError:
        return ""


def _say_stored(found: Mapping[str, Any]) -> None:
    name = found["name"]
    say(f"{name} is {'replaced' if found['replaced'] else 'stored'}. {_used_by(found)}")
    if found["environment"]:
        hint(
            f"Toolcrib's environment also sets {name}, and ${{{name}}} takes that value. "
            f"${{input:{name}}} always takes the stored one."
        )


def _users(found: Mapping[str, Any]) -> str:
    return ", ".join(found["servers"]) or ("another part of your configuration" if found.get("elsewhere") else "")


def _used_by(found: Mapping[str, Any]) -> str:
    return f"Used by: {_users(found)}." if _users(found) else "Nothing uses it."


@secret.command("list")
def list_secrets(*, as_json: AsJson = False) -> int:
    """List your secrets, the servers that use them, and what is missing. Values are never shown."""
    found = printed(perform("secret:list"), as_json=as_json)
    rows = [(row["name"], "stored", _users(row)) for row in found["secrets"]]
    rows += [(row["name"], "missing", _users(row)) for row in found["missing"]]
    if rows:
        table(("name", "state", "used by"), rows)
    else:
        say("No secrets yet.")
        hint("Next: `toolcrib secret set NAME`, and ${NAME} in the configuration.")
    for row in found["secrets"]:
        if row["environment"]:
            hint(f"Toolcrib's environment also sets {row['name']}, and ${{{row['name']}}} takes that value.")
    for row in found["damaged"]:
        hint(f"Damaged: {row['reason']}")
    if found["missing"]:
        hint("`toolcrib secret set` asks for each missing value.")
    if found["secrets"] and found["key_store"]:
        hint(_PROTECTS[found["key_store"]])
    return 0


@secret.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> int:
    """Delete a secret. If it is in use, asks for confirmation; servers that need it stop."""
    used = [row for row in perform("secret:list")["secrets"] if row["name"] == name and _users(row)]
    if used and not yes:
        hint(f"{name} is used by: {_users(used[0])}.")
        if not confirmed("Delete it?", instead="Add --yes."):
            hint("Nothing was changed.")
            return 1
    found = printed(perform("secret:remove", {"name": name}), as_json=as_json)
    say(f"{found['name']} is deleted. {_used_by(found)}")
    return 0


@secret.command()
def migrate(
    to: Annotated[KeyStore, typer.Option("--to", help="Where the key is kept.")],
    *,
    as_json: AsJson = False,
) -> int:
    """Make a new key for secrets and sign-ins, keep it in a file or the system's keyring, and encrypt them again."""
    params = {"to": to.value, "bus": os.environ.get("DBUS_SESSION_BUS_ADDRESS", "")}
    found = printed(perform("secret:migrate", params), as_json=as_json)
    say(f"Secrets and sign-ins encrypted again with a new key: {found['entries']}. {_PROTECTS[to]}")
    return 0
