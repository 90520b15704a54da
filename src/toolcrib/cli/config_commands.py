"""`config check|show|path`: the configuration and its files.

In: command-line arguments. Out: an exit code. Its neighbour is `trust_commands`.
"""

from __future__ import annotations

from pathlib import Path

import typer
import yaml

from toolcrib.cli.options import AsJson
from toolcrib.cli.output import printed, say
from toolcrib.cli.perform import paths, perform, root
from toolcrib.config.paths import CONFIG_NAMES, PROJECT_FOLDER, SHARED_PROJECT_FILE, WORKSPACE_NAMES, configs_in
from toolcrib.errors import ConfigError

commands = typer.Typer(rich_markup_mode=None)
config = typer.Typer(help="Check, show and locate the configuration.")
commands.add_typer(config, name="config")


@config.command()
def check(*, as_json: AsJson = False) -> int:
    """Report every problem in the configuration. Exit code 3: there is an error."""
    found = perform("config:check")
    code = 0 if found.get("ok", not found["problems"]) else ConfigError.exit_code
    printed(found, as_json=as_json, exit_code=code)
    for problem in found["problems"]:
        say(f"{problem['severity']}: {problem['text']}")
    if not found["problems"]:
        say(f"No problems found. Servers: {', '.join(found.get('servers', [])) or 'none yet'}.")
    return code


@config.command()
def show(*, as_json: AsJson = False) -> int:
    """Show the effective configuration, with secrets masked."""
    found = printed(perform("config:show"), as_json=as_json)
    say(yaml.safe_dump(found["config"], sort_keys=False, allow_unicode=True).rstrip())
    return 0


@config.command()
def path(*, as_json: AsJson = False) -> int:
    """Show the paths of your files and of this project's."""
    mine = paths()
    found = printed(
        {
            "user": str(mine.user_config),
            "project": [str(file) for file in project_files()],
            "state": str(mine.state_dir),
            "cache": str(mine.cache_dir),
            "socket": str(mine.socket),
            "log": str(mine.log),
        },
        as_json=as_json,
    )
    for name, value in found.items():
        for file in value if isinstance(value, list) else [value]:
            say(f"{name + ':':<9}{file}")
    return 0


def project_files() -> list[Path]:
    shared = root() / SHARED_PROJECT_FILE
    own = configs_in(root() / PROJECT_FOLDER, (*CONFIG_NAMES, *WORKSPACE_NAMES))
    return [*([shared] if shared.is_file() else []), *own]
