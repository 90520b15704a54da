"""The locations of a user's files, the project of a folder, and private folders.

In: the environment, a folder. Out: `Paths`, the only place with Toolcrib's folder and file names; `project_of`;
`private_folder`. `slug` makes a server's name safe for file names and tool names. Imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolcrib.errors import ConfigError, StoreError, UsageError


def slug(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


def server_key(name: str) -> str:
    """Equal for server names that would lead to the same public tool names."""
    return slug(name).lower()


CONFIG_NAMES = ("config.yml", "config.yaml", "config.json")
"""In order of preference; only the first that exists is read."""

WORKSPACE_NAMES = ("workspace.yml", "workspace.yaml", "workspace.json")
"""The settings of the workspace server, chosen in the same way."""

PROJECT_FOLDER = ".toolcrib"
RUNS = "runs"
"""A folder in `PROJECT_FOLDER` with the logs of runs, which show what other agents did."""
SHARED_PROJECT_FILE = ".mcp.json"
"""The file that several clients read from a project."""


def home_of(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    if Path(home).is_absolute():
        return Path(home)
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError("This user has no home folder.", remedy="Set HOME to one of your folders.") from error


@dataclass(frozen=True, kw_only=True)
class Paths:
    config_dir: Path
    state_dir: Path
    cache_dir: Path
    run_dir: Path
    """Deleted at logout if the system provides such a folder."""

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> Paths:
        """`TOOLCRIB_HOME` contains everything; without it, the XDG base directories are used."""
        home = home_of(environ)
        if chosen := environ.get("TOOLCRIB_HOME"):
            base = (home / chosen[2:] if chosen.startswith("~/") else Path(chosen)).absolute()
            return cls(config_dir=base, state_dir=base / "state", cache_dir=base / "cache", run_dir=base / "run")

        def folder(variable: str, default: Path) -> Path:
            # The specification requires relative paths to be ignored.
            given = Path(environ.get(variable, ""))
            return (given if given.is_absolute() else default) / "toolcrib"

        state = folder("XDG_STATE_HOME", home / ".local" / "state")
        return cls(
            config_dir=folder("XDG_CONFIG_HOME", home / ".config"),
            state_dir=state,
            cache_dir=folder("XDG_CACHE_HOME", home / ".cache"),
            run_dir=folder("XDG_RUNTIME_DIR", state.parent),
        )

    @property
    def folders(self) -> tuple[Path, ...]:
        """All of Toolcrib's folders, which contain keys and tokens."""
        return self.config_dir, self.state_dir, self.cache_dir, self.run_dir

    @property
    def user_config(self) -> Path:
        """The existing configuration file, or the one to create."""
        return next(iter(configs_in(self.config_dir)), self.config_dir / CONFIG_NAMES[0])

    @property
    def database(self) -> Path:
        return self.state_dir / "mcp_sessions.db"

    @property
    def last_store(self) -> Path:
        """Contains the `--store` of the last daemon."""
        return self.state_dir / "store"

    @property
    def owner_token(self) -> Path:
        return self.state_dir / "owner.token"

    @property
    def agents(self) -> Path:
        """Contains a private folder for each agent, with its token and generated configurations."""
        return self.state_dir / "agents"

    @property
    def handles_key(self) -> Path:
        """The key of the handles that clients get."""
        return self.state_dir / "handles.key"

    @property
    def results(self) -> Path:
        """Large results that agents can still read, sealed, in a folder for each agent."""
        return self.state_dir / "results"

    @property
    def search_cache(self) -> Path:
        """What searches for tools keep between starts. It can be deleted."""
        return self.state_dir / "search"

    @property
    def runs_key(self) -> Path:
        """The key that identifies run logs written by this user's Toolcrib."""
        return self.state_dir / "runs.key"

    @property
    def log(self) -> Path:
        return self.state_dir / "toolcrib.log"

    @property
    def start_folder(self) -> Path:
        """The empty folder in which servers of the user's configuration start."""
        return self.state_dir / "start"

    @property
    def credentials(self) -> Path:
        """Secrets and accounts, encrypted, and their key."""
        return self.state_dir / "credentials"

    @property
    def programs(self) -> Path:
        """Caches the versions of the coding agents' programs."""
        return self.cache_dir / "programs.json"

    @property
    def install_locks(self) -> Path:
        """Contains a lock for each package that a launcher fetches."""
        return self.run_dir / "installing"

    @property
    def stopped(self) -> Path:
        """Exists after `toolcrib down`, until the next daemon runs: open bridges don't start one."""
        return self.state_dir / "stopped"

    @property
    def lock(self) -> Path:
        return self.run_dir / "daemon.lock"

    @property
    def socket(self) -> Path:
        return self.run_dir / "daemon.sock"

    @property
    def daemon_info(self) -> Path:
        return self.run_dir / "daemon.json"

    def server_log(self, name: str, root: Path | None) -> Path:
        """One log per instance. The file name has a digest of the root, and one of the name if that is unsafe."""
        safe = slug(name)[:64]
        if safe != name:
            safe += f"-{_short(name)}"
        where = f"@{_short(str(root))}" if root is not None else ""
        return self.state_dir / "servers" / f"{safe}{where}.log"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]


def configs_in(folder: Path, names: Sequence[str] = CONFIG_NAMES) -> tuple[Path, ...]:
    """The configuration files in a folder, in order of preference, including broken links."""
    return tuple(path for name in names if os.path.lexists(path := folder / name))


def project_config(root: Path) -> Path:
    """The project's existing configuration file, or the one to create."""
    folder = root / PROJECT_FOLDER
    return (*configs_in(folder), folder / CONFIG_NAMES[0])[0]


_SETTINGS = (*CONFIG_NAMES, *WORKSPACE_NAMES)


def project_of(folder: Path) -> Path:
    """The nearest folder upwards with Toolcrib settings or a git repository, or else the folder itself."""
    here = folder.resolve()
    for one in (here, *here.parents):
        if is_project(one):
            return one
    return here


def project_root(environ: Mapping[str, str], cwd: Path) -> Path:
    """`CLAUDE_PROJECT_DIR` if a client sets it, or else `project_of` the working folder."""
    given = environ.get("CLAUDE_PROJECT_DIR", "")
    if given and Path(given).is_dir():
        return Path(given).resolve()
    return project_of(cwd)


def working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The working folder no longer exists.", remedy="Change to an existing folder.") from error


def is_project(folder: Path) -> bool:
    """Whether the folder itself has Toolcrib settings or a git repository."""
    return _is_repository(folder / ".git") or any((folder / PROJECT_FOLDER / name).exists() for name in _SETTINGS)


def _is_repository(mark: Path) -> bool:
    """A worktree and a submodule have a file there. An empty folder doesn't count, as in git."""
    return mark.is_file() or (mark / "HEAD").exists()


def private_folder(folder: Path) -> None:
    """Creates the folder, or removes others' permissions from an existing one. Raises `StoreError` if another user owns
    the folder or a link to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = folder.lstat()
        # The descriptor makes sure that the folder that is checked is the one that is changed.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            there = os.fstat(descriptor)
            owners = {there.st_uid, link.st_uid} if stat.S_ISLNK(link.st_mode) else {there.st_uid}
            if owners == {os.geteuid()} and there.st_mode & 0o077:
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unusable_path(error, folder) from error
    if owners != {os.geteuid()}:
        raise StoreError(
            f"{folder} belongs to another user, who could read or change its files.",
            remedy="Run Toolcrib as that user, or set TOOLCRIB_HOME to another folder.",
        )


def empty_folder(folder: Path) -> None:
    """Creates a private, read-only folder, in which only root can create files."""
    private_folder(folder)
    try:
        folder.chmod(0o500)
    except OSError as error:
        raise unusable_path(error, folder) from error


def unusable_path(error: OSError, place: Path) -> StoreError:
    """The error for a file or folder of the user's that can't be created, read or written."""
    return StoreError(
        f"{error.filename or place} cannot be used: {error.strerror or error}.",
        remedy="Free some space or make it writable, or set TOOLCRIB_HOME to another folder.",
    )
