"""All sources → one `Config`.

In: a user's file, a project's files, the environment and the flags; a later one wins. Out: always a `Config`, with its
mistakes in `problems`. A project's files are used only if they are trusted. `store_location` also chooses the database:
the daemon records the value of `toolcrib up --store`, so that no later command opens another one by accident.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from toolcrib.config.contribution import SECTIONS, Contribution, ServerEntry, contribution_of, take_entry, take_setting
from toolcrib.config.keys import ConfigField, nearest_key, normalized_key
from toolcrib.config.masking import mask_args
from toolcrib.config.model import (
    Config,
    DaemonSettings,
    Flags,
    Layer,
    PinMode,
    Problem,
    ServerConfig,
    Severity,
    UntrustedFile,
)
from toolcrib.config.paths import CONFIG_NAMES, PROJECT_FOLDER, SHARED_PROJECT_FILE, Paths, configs_in, home_of
from toolcrib.config.problems import ProblemReport, describe, sorted_problems
from toolcrib.config.read import ConfigDocument, parse_document, read_document
from toolcrib.config.settings import TOP_KEYS
from toolcrib.config.trust import digest_of, effects_of, has_no_links
from toolcrib.config.values import EntryContext, Secrets, ValueReader
from toolcrib.errors import ConfigError


def remember_store(paths: Paths, flag: str | None) -> None:
    """Records the daemon's `--store`. None and the default file need no record: other commands find them anyway."""
    file = paths.last_store
    if flag is None or Path(flag) == paths.database:
        file.unlink(missing_ok=True)
        return
    fresh = file.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{flag}\n")
    fresh.replace(file)


def default_store(paths: Paths) -> Path:
    """The file in the state folder. Raises `ConfigError` if the last daemon used another database."""
    try:
        last = paths.last_store.read_text(errors="replace").strip()
    except OSError:
        last = ""
    if last:
        raise ConfigError(
            f"The last daemon was started with --store {last}, and no setting says which database to use now.",
            remedy=f"To keep using it, write `store: {last}` into {paths.user_config}, set TOOLCRIB_STORE, or start "
            f"with `toolcrib up --store` again. To return to the default file: `toolcrib up --store {paths.database}`.",
        )
    return paths.database


IsTrusted = Callable[[Path, str], bool]
"""(absolute path, digest) → whether the user trusted exactly this content."""

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_VARIABLES = {
    "TOOLCRIB_PORT": "port",
    "TOOLCRIB_NAMES": "names",
    "TOOLCRIB_LOG_LEVEL": "log_level",
    "TOOLCRIB_STORE": "store",
}


@dataclasses.dataclass(kw_only=True)
class LastGood:
    """The last valid versions, which stay in effect after a bad edit, as long as the process runs."""

    files: dict[Path, bytes] = dataclasses.field(default_factory=dict)
    """The user's file and the trusted project files."""
    servers: dict[str, ServerConfig] = dataclasses.field(default_factory=dict)
    """The entries of the user's file."""


def files_read(paths: Paths, root: Path) -> tuple[Path, ...]:
    """Every path where a configuration file would be read for this project."""
    return (*(paths.config_dir / name for name in CONFIG_NAMES), *_project_files(root))


def _project_files(root: Path) -> tuple[Path, ...]:
    root = Path(os.path.realpath(root))
    return (root / SHARED_PROJECT_FILE, *(root / PROJECT_FOLDER / name for name in CONFIG_NAMES))


def trust_nothing(_path: Path, _digest: str) -> bool:
    return False


def load(
    *,
    paths: Paths,
    root: Path | None,
    environ: Mapping[str, str],
    secrets: Secrets | None = None,
    flags: Flags | None = None,
    is_trusted: IsTrusted = trust_nothing,
    last_good: LastGood | None = None,
) -> Config:
    """`last_good` remembers what was valid: if a file or an entry of the user's becomes invalid, its last valid version
    stays in effect."""
    good = last_good or LastGood()
    secrets = secrets or Secrets()
    context = EntryContext(
        layer=Layer.USER, environ=environ, secrets=secrets, home=home_of(environ), neutral=paths.start_folder
    )
    user = list(_user(paths, context, good))
    project, waiting = _project(root, context, is_trusted, user, good.files)
    merged = _merged(
        [*user, *project, _environment(context), _flags(flags or Flags(), context)], waiting=waiting, root=root
    )
    return dataclasses.replace(merged, secrets=MappingProxyType(secrets.used))


def store_location(
    paths: Paths, environ: Mapping[str, str], flags: Flags, secrets: Secrets | None = None
) -> str | Path:
    """Where the database is. Raises `ConfigError` for an invalid `store`, instead of using another database."""
    config = load(paths=paths, root=None, environ=environ, flags=flags, secrets=secrets)
    if problem := config.unusable.get("store"):
        raise ConfigError(str(problem), remedy="Correct it; Toolcrib does not start with another database.")
    return config.settings.store or default_store(paths)


def _user(paths: Paths, context: EntryContext, last_good: LastGood) -> Iterator[Contribution]:
    path = paths.user_config
    document = read_document(path)
    if document is None:
        last_good.files.pop(path, None)
        last_good.servers.clear()
        return
    warn_of_others(configs_in(paths.config_dir)[1:], document)
    warn_if_open(path, document)
    context = dataclasses.replace(context, file=path)
    found = contribution_of(document, context)
    if not _is_broken(found.report):
        last_good.files[path] = document.content
        _keep_entries(found, last_good, context.secrets)
    elif path in last_good.files:
        found = contribution_of(parse_document(str(path), last_good.files[path]), context)
        _keep_entries(found, last_good, context.secrets)
        found.report = _warned(document, _STAYS)
    yield found


def _keep_entries(found: Contribution, last_good: LastGood, secrets: Secrets) -> None:
    """Puts the last valid entry in the place of one with an error, unless it used a secret that is gone."""
    for name, path in found.invalid.items():
        if name in last_good.servers and all(secret in secrets for secret in last_good.servers[name].secrets):
            found.servers[name] = last_good.servers[name]
            found.report.warning(
                path,
                found="an invalid entry",
                expected="a valid entry",
                suggestion="Its last valid version stays in effect until you fix it.",
            )
    last_good.servers = dict(found.servers)


_STAYS = {
    "found": "content that cannot be used",
    "expected": "a valid file",
    "suggestion": "Its last valid version stays in effect until you fix it.",
}
_WAITS = {
    "found": "a project file that is not trusted in its current form",
    "expected": "a trusted file",
    "suggestion": "It has no effect. To review and trust it, run `toolcrib trust`.",
}


def _warned(document: ConfigDocument, about: Mapping[str, str]) -> ProblemReport:
    document.report.warning((), **about)
    return document.report


def _is_broken(report: ProblemReport) -> bool:
    """Whether all servers are missing: the file doesn't parse, or the servers' section is misspelled or invalid."""
    errors = [normalized_key(problem.key) for problem in report.problems if problem.severity is Severity.ERROR]
    return any(not key or key in SECTIONS or (key.isidentifier() and _is_like_a_section(key)) for key in errors)


def _is_like_a_section(key: str) -> bool:
    return key not in TOP_KEYS and nearest_key(key, TOP_KEYS) in SECTIONS


def warn_of_others(others: tuple[Path, ...], document: ConfigDocument) -> None:
    for other in others:
        document.report.warning((), found=f"{other.name} next to it", expected="one file; only this one is read")


def warn_if_open(path: Path, document: ConfigDocument) -> None:
    try:
        open_to_all = path.stat().st_mode & stat.S_IWOTH
    except OSError:
        # It was deleted after it was read.
        return
    if open_to_all:
        document.report.warning(
            (),
            found="a file that everyone can write",
            expected="a file that only you can write",
            suggestion="It decides which programs run as you: run `chmod 600` on it.",
        )


def _project(
    root: Path | None,
    context: EntryContext,
    is_trusted: IsTrusted,
    user: list[Contribution],
    last_good: dict[Path, bytes],
) -> tuple[list[Contribution], tuple[UntrustedFile, ...]]:
    contributions: list[Contribution] = []
    waiting: list[UntrustedFile] = []
    users_names = {key: name for contribution in user for key, name in contribution.claimed.items()}
    before = {path: last_good.pop(path, b"") for path in (_project_files(root) if root else ())}
    for path, document in _project_documents(root):
        digest = digest_of(path, document.content)
        inside = dataclasses.replace(
            context, layer=Layer.PROJECT, file=path, root=root and Path(os.path.realpath(root)), neutral=None
        )
        if not document.data:
            good = before[path]
            if document.content and document.report.errors and good and is_trusted(path, digest_of(path, good)):
                # It can't be read, so it asks for nothing new: what the user trusted stays in effect.
                last_good[path] = good
                contributions.append(contribution_of(parse_document(str(path), good), inside))
                contributions[-1].report = _warned(document, _STAYS)
            else:
                contributions.append(Contribution(report=document.report))
        elif is_trusted(path, digest):
            last_good[path] = document.content
            contributions.append(contribution_of(document, inside))
        elif effects := effects_of(document, users_names, context.environ, context.secrets):
            waiting.append(UntrustedFile(file=path, digest=digest, effects=effects))
            contributions.append(Contribution(report=_warned(document, _WAITS)))
    return contributions, tuple(waiting)


def _project_documents(root: Path | None) -> Iterator[tuple[Path, ConfigDocument]]:
    """In increasing precedence, each with its real absolute path, because trust is bound to that path."""
    if root is None:
        return
    root = Path(os.path.realpath(root))
    shared = root / SHARED_PROJECT_FILE
    own = configs_in(root / PROJECT_FOLDER)
    for path in (shared, *own[:1]):
        if not has_no_links(path):
            report = ProblemReport(str(path))
            report.error((), found="a symbolic link", expected="a file in the project", suggestion="It is not read.")
            yield path, ConfigDocument(data={}, report=report)
        elif document := read_document(path):
            if path != shared:
                warn_of_others(own[1:], document)
            yield path, document


def _environment(context: EntryContext) -> Contribution:
    context = dataclasses.replace(context, layer=Layer.ENVIRONMENT)
    text = context.environ.get("TOOLCRIB_SERVERS", "")
    document = parse_document("TOOLCRIB_SERVERS", text.encode(errors="surrogateescape"))
    if document.data.keys() & {"servers", "mcpServers"}:
        result = contribution_of(document, context)
        result.settings, result.unusable, result.tools = {}, {}, ()
    else:
        result = Contribution(report=document.report)
        for name, entry in document.data.items():
            take_entry(ServerEntry(name=name, entry=entry, path=(name,)), result, context, document.ambiguous)
    settings = ProblemReport("environment")
    values = ValueReader(context, settings)
    for variable, name in _VARIABLES.items():
        if given := context.environ.get(variable):
            value = int(given) if name == "port" and given.isascii() and given.isdigit() and len(given) < 9 else given
            take_setting(name, ConfigField(value=value, path=(variable,)), result, values)
    result.report.problems += settings.problems
    return result


def _flags(flags: Flags, context: EntryContext) -> Contribution:
    result = Contribution(report=ProblemReport("--mcp-server"))
    context = dataclasses.replace(context, layer=Layer.FLAGS)
    for given in flags.mcp_servers:
        name, separator, target = given.partition("=")
        if not separator or not target.strip():
            result.report.error((), found=_shown(given), expected="NAME=URL or NAME=COMMAND")
            continue
        if _URL.match(target):
            entry: dict[str, object] = {"url": target}
        else:
            try:
                command, *args = shlex.split(target)
            except ValueError as error:
                result.report.error((name,), found=f"{_shown(target)} ({error})", expected="a command line")
                continue
            entry = {"command": command, "args": args}
        take_entry(ServerEntry(name=name, entry=entry, path=(name,)), result, context)
    chosen: dict[str, object] = {"port": flags.port, "store": flags.store}
    for key, value in chosen.items():
        if value is not None:
            report = ProblemReport(f"--{key}")
            take_setting(key, ConfigField(value=value, path=()), result, ValueReader(context, report))
            result.report.problems += report.problems
    return result


def _shown(command_line: str) -> str:
    return describe(" ".join(mask_args(command_line.split())))


def _merged(contributions: list[Contribution], *, waiting: tuple[UntrustedFile, ...], root: Path | None) -> Config:
    servers: dict[str, ServerConfig] = {}
    by_key: dict[str, str] = {}
    settings = DaemonSettings()
    unusable: dict[str, Problem] = {}
    problems: list[Problem] = []
    for contribution in contributions:
        for key, name in contribution.claimed.items():
            below = servers.get(by_key.get(key, ""))
            if below is not None:
                del servers[below.name]
                if below.name != name:
                    contribution.report.warning(
                        (name,),
                        found=f"{describe(name)}, which replaces {describe(below.name)}",
                        expected="the same spelling",
                    )
            if off := contribution.switched_off.get(name):
                if below is None:
                    contribution.report.warning((name,), found="only a switch", expected="a server to switch off")
                elif off.tools:
                    hidden = tuple(dict.fromkeys((*below.disabled_tools, *off.tools)))
                    servers[name] = dataclasses.replace(below, name=name, disabled_tools=hidden)
                else:
                    servers[name] = dataclasses.replace(below, name=name, enabled=False, source=off.source)
            elif name in contribution.servers:
                servers[name] = _kept_strict(contribution.servers[name], below)
            by_key[key] = name
        settings = dataclasses.replace(settings, **contribution.settings)
        unusable = {name: why for name, why in unusable.items() if name not in contribution.settings}
        unusable |= contribution.unusable
        problems += contribution.report.problems
    return Config(
        servers=MappingProxyType(servers),
        settings=settings,
        unusable=MappingProxyType(unusable),
        tools=tuple(rule for contribution in contributions for rule in contribution.tools),
        inputs={name: about for contribution in contributions for name, about in contribution.inputs.items()},
        problems=sorted_problems(problems),
        waiting=waiting,
        root=root,
    )


def _kept_strict(server: ServerConfig, below: ServerConfig | None) -> ServerConfig:
    """A project's entry in place of yours can't let in tools that yours holds."""
    if below is None or below.pins is not PinMode.HOLD or server.source.layer is not Layer.PROJECT:
        return server
    return dataclasses.replace(server, pins=PinMode.HOLD)
