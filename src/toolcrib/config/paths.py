"""Where a user's files are, which project a folder belongs to, and folders that nobody else may enter.

In: the environment, a folder. Out: `Paths`, the one place that knows a folder or file name of ours; `project_of`;
`private_folder`. `slug` makes a server's name safe for file names and tools' names. Imports nothing heavy.
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
    """Equal for names that tools' public names could not tell apart."""
    return slug(name).lower()


CONFIG_NAMES = ("config.yml", "config.yaml", "config.json")
"""In the order of preference; only the first that exists is read."""

WORKSPACE_NAMES = ("workspace.yml", "workspace.yaml", "workspace.json")
"""The settings of the workspace server, chosen likewise."""

PROJECT_FOLDER = ".toolcrib"
RUNS = "runs"
"""In it: logs of runs, which hold what other agents did."""
SHARED_PROJECT_FILE = ".mcp.json"
"""The file that several clients read from a project."""


def home_of(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    if Path(home).is_absolute():
        return Path(home)
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError("This user has no home.", remedy="Set HOME to a folder of yours.") from error


@dataclass(frozen=True, kw_only=True)
class Paths:
    config_dir: Path
    state_dir: Path
    cache_dir: Path
    run_dir: Path
    """Lives as long as the login where the system offers such a folder."""

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> Paths:
        """`TOOLCRIB_HOME` holds everything; without it the folders of the XDG base directory specification."""
        home = home_of(environ)
        if chosen := environ.get("TOOLCRIB_HOME"):
            base = (home / chosen[2:] if chosen.startswith("~/") else Path(chosen)).absolute()
            return cls(config_dir=base, state_dir=base / "state", cache_dir=base / "cache", run_dir=base / "run")

        def folder(variable: str, otherwise: Path) -> Path:
            # The specification asks to ignore relative paths.
            given = Path(environ.get(variable, ""))
            return (given if given.is_absolute() else otherwise) / "toolcrib"

        state = folder("XDG_STATE_HOME", home / ".local" / "state")
        return cls(
            config_dir=folder("XDG_CONFIG_HOME", home / ".config"),
            state_dir=state,
            cache_dir=folder("XDG_CACHE_HOME", home / ".cache"),
            run_dir=folder("XDG_RUNTIME_DIR", state.parent),
        )

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that there are: keys and tokens are in them."""
        return self.config_dir, self.state_dir, self.cache_dir, self.run_dir

    @property
    def user_config(self) -> Path:
        """The configuration file that exists, or the one to make."""
        return next(iter(configs_in(self.config_dir)), self.config_dir / CONFIG_NAMES[0])

    @property
    def database(self) -> Path:
        return self.state_dir / "mcp_sessions.db"

    @property
    def last_store(self) -> Path:
        """Where the last daemon kept its things, if a flag said so."""
        return self.state_dir / "store"

    @property
    def owner_token(self) -> Path:
        return self.state_dir / "owner.token"

    @property
    def agents(self) -> Path:
        """A private folder for each agent: its token, and the configurations made for it."""
        return self.state_dir / "agents"

    @property
    def runs_key(self) -> Path:
        """Tells logs of runs that were written here from others."""
        return self.state_dir / "runs.key"

    @property
    def log(self) -> Path:
        return self.state_dir / "toolcrib.log"

    @property
    def start_folder(self) -> Path:
        """Where servers of the user's configuration start: nothing is in it."""
        return self.state_dir / "start"

    @property
    def programs(self) -> Path:
        """Which versions the coding agents' programs have."""
        return self.cache_dir / "programs.json"

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
        """One for each instance; a digest stands for the root, and for a name that is no safe file name."""
        safe = slug(name)[:64]
        if safe != name:
            safe += f"-{_short(name)}"
        where = f"@{_short(str(root))}" if root is not None else ""
        return self.state_dir / "servers" / f"{safe}{where}.log"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]


def configs_in(folder: Path, names: Sequence[str] = CONFIG_NAMES) -> tuple[Path, ...]:
    """The configuration files that stand in a folder, the one to read first; a link counts, wherever it leads."""
    return tuple(path for name in names if os.path.lexists(path := folder / name))


def project_config(root: Path) -> Path:
    """The file of a project's own that exists, or the one to make."""
    folder = root / PROJECT_FOLDER
    return (*configs_in(folder), folder / CONFIG_NAMES[0])[0]


_SETTINGS = (*CONFIG_NAMES, *WORKSPACE_NAMES)


def project_of(folder: Path) -> Path:
    """The nearest folder upwards with settings of ours or a git repository, else the folder itself."""
    here = folder.resolve()
    for one in (here, *here.parents):
        if is_project(one):
            return one
    return here


def project_root(environ: Mapping[str, str], cwd: Path) -> Path:
    """`CLAUDE_PROJECT_DIR` where a client says it, else the nearest folder upwards with `.toolcrib` or `.git`, else
    the working folder itself."""
    said = environ.get("CLAUDE_PROJECT_DIR", "")
    if said and Path(said).is_dir():
        return Path(said).resolve()
    return project_of(cwd)


def working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The working folder no longer exists.", remedy="Go to one that does.") from error


def is_project(folder: Path) -> bool:
    """Whether the folder itself says that it is one."""
    return _is_repository(folder / ".git") or any((folder / PROJECT_FOLDER / name).exists() for name in _SETTINGS)


def _is_repository(mark: Path) -> bool:
    """A worktree and a submodule have a file there. An empty folder is none: git does not take it for one either."""
    return mark.is_file() or (mark / "HEAD").exists()


def private_folder(folder: Path) -> None:
    """Makes it, or takes others' rights away from one that is there. One that others own, or lead to, is not taken."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = folder.lstat()
        # What was looked at is what is changed, whatever is put in its place meanwhile.
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
            f"{folder} belongs to another user, who could read or change what is kept there.",
            remedy="Run it as that user, or name another folder: TOOLCRIB_HOME.",
        )


def empty_folder(folder: Path) -> None:
    """Makes a private folder that nothing can be put into, except by root."""
    private_folder(folder)
    try:
        folder.chmod(0o500)
    except OSError as error:
        raise unusable_path(error, folder) from error


def unusable_path(error: OSError, place: Path) -> StoreError:
    """What to say of a file or folder of the user's that cannot be made, read or written."""
    return StoreError(
        f"{error.filename or place} cannot be used: {error.strerror or error}.",
        remedy="Make room, or make it writable for you; TOOLCRIB_HOME names another folder.",
    )
