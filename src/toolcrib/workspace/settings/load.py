"""All settings files → the effective `WorkspaceSettings` of one folder.

In: the `workspace.yml` of the user and of the project, or one named with `--config`. Out: always `LoadedSettings`, with
any errors in its problems. A later file wins; an untrusted one can only narrow. A folder inside a project has the
project's settings too, the outer folder's first. The daemon decides which files are trusted; the stand-alone server
trusts only the file from `--config`.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from toolcrib.config.layers import IsTrusted, trust_nothing, warn_if_open, warn_of_others
from toolcrib.config.model import Problem, Severity, UntrustedFile
from toolcrib.config.paths import PROJECT_FOLDER, WORKSPACE_NAMES, Paths, configs_in, home_of
from toolcrib.config.problems import ProblemReport, sorted_problems
from toolcrib.config.read import ConfigDocument, read_document
from toolcrib.config.trust import digest_of, has_no_links
from toolcrib.workspace.settings.model import (
    DEFAULTS,
    GitMode,
    WorkspaceSettings,
    anchored_below,
    apply_file,
    flat_settings,
    narrow_settings,
    widening_effects,
)
from toolcrib.workspace.settings.read import PrivateFolders, lies_within, read_settings

FLAG_READ_ONLY = "--read-only"


class FileTrust(enum.StrEnum):
    """Why a file is trusted, or that it is not."""

    YOURS = "yours"
    CHOSEN = "named with --config"
    TRUSTED = "trusted"
    UNTRUSTED = "not trusted: only its restrictions apply"


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    path: Path
    trust: FileTrust


@dataclass(frozen=True, kw_only=True)
class LoadedSettings:
    settings: WorkspaceSettings
    problems: tuple[Problem, ...] = ()
    """Errors first."""
    files: tuple[SettingsFile, ...] = ()
    """Existing files, in increasing order of precedence."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The file or flag that set a value, by key as in `flat_settings`; other values are built in."""
    waiting: UntrustedFile | None = None
    """The project's file, if it would widen permissions and its current content is not trusted."""

    @property
    def ok(self) -> bool:
        return not self.settings.broken

    @property
    def effects(self) -> tuple[str, ...]:
        """What the `waiting` file would widen, one line each."""
        return self.waiting.effects if self.waiting else ()


@dataclass(frozen=True, kw_only=True)
class _Source:
    file: SettingsFile
    document: ConfigDocument
    folder: Path | None = None
    """The folder its patterns are relative to; None: the root."""


def load_settings(
    root: Path,
    *,
    environ: Mapping[str, str],
    config: Path | None = None,
    is_trusted: IsTrusted = trust_nothing,
    read_only: bool = False,
) -> LoadedSettings:
    private = PrivateFolders.of_user(environ)
    here = Path(os.path.realpath(root))
    settings, waiting = DEFAULTS, None
    origins: dict[str, str] = {}
    projects = list(_projects(root, private.home, is_trusted)) if config is None else list(_chosen(config))
    sources = [*_user(Paths.of_user(environ)), *projects]
    top = next((source.folder for source in projects if source.folder), here)
    for source in sources:
        below = settings
        way = (source.folder or here).relative_to(top).parts
        wanted = apply_file(below, anchored_below(way, read_settings(source.document, private)))
        if source.file.trust is FileTrust.UNTRUSTED:
            settings = narrow_settings(below, wanted)
            waiting = _waiting(source, widening_effects(wanted, settings))
        else:
            settings = wanted
        origins |= dict.fromkeys(_changed(below, settings), str(source.file.path))
    if read_only and not settings.read_only:
        settings = dataclasses.replace(settings, read_only=True)
        origins["read_only"] = FLAG_READ_ONLY
    outside = tuple(folder for folder in settings.readable if not lies_within(root, folder))
    problems = sorted_problems(problem for source in sources for problem in source.document.report.problems)
    return LoadedSettings(
        settings=_safe(
            dataclasses.replace(settings, readable=outside, above="/".join(here.relative_to(top).parts)),
            problems,
        ),
        problems=problems,
        files=tuple(source.file for source in sources),
        origins=MappingProxyType(origins),
        waiting=waiting,
    )


def settings_files(root: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Every path where a settings file would be read."""
    projects = [folder / PROJECT_FOLDER for folder in _folders(root, home_of(environ))]
    folders = (Paths.of_user(environ).config_dir, *projects)
    return tuple(folder / name for folder in folders for name in WORKSPACE_NAMES)


def _user(paths: Paths) -> Iterator[_Source]:
    for path in configs_in(paths.config_dir, WORKSPACE_NAMES)[:1]:
        document = read_document(path) or _without(path, "a broken link")
        warn_of_others(configs_in(paths.config_dir, WORKSPACE_NAMES)[1:], document)
        warn_if_open(path, document)
        yield _Source(file=SettingsFile(path=path, trust=FileTrust.YOURS), document=document)


def _chosen(config: Path) -> Iterator[_Source]:
    path = config.expanduser().absolute()
    document = read_document(path) or _without(path, "no file")
    yield _Source(file=SettingsFile(path=path, trust=FileTrust.CHOSEN), document=document)


def _projects(root: Path, home: Path, is_trusted: IsTrusted) -> Iterator[_Source]:
    for folder in _folders(root, home):
        found = configs_in(folder / PROJECT_FOLDER, WORKSPACE_NAMES)
        for path in found[:1]:
            document = read_document(path) if has_no_links(path) else _without(path, "a link")
            if document is None:
                # Deleted since it was listed.
                continue
            warn_of_others(found[1:], document)
            trusted = is_trusted(path, digest_of(path, document.content))
            trust = FileTrust.TRUSTED if trusted else FileTrust.UNTRUSTED
            yield _Source(file=SettingsFile(path=path, trust=trust), document=document, folder=folder)


def _folders(root: Path, home: Path) -> tuple[Path, ...]:
    """The root and its parents, the outermost first; stops at the home folder and at world-writable folders."""
    # Trust is bound to the real path.
    here = Path(os.path.realpath(root))
    folders = [here]
    for folder in here.parents[:-1]:
        if folder == home or _is_everybodys(folder):
            break
        folders.append(folder)
    return tuple(reversed(folders))


def _is_everybodys(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return True


def _without(path: Path, found: str) -> ConfigDocument:
    report = ProblemReport(str(path))
    report.error((), found=found, expected="a workspace settings file")
    return ConfigDocument(data={}, report=report)


def _waiting(source: _Source, effects: tuple[str, ...]) -> UntrustedFile | None:
    if not effects or source.document.report.errors:
        return None
    path = source.file.path
    source.document.report.warning(
        (),
        found="a project file that is not trusted in its current form",
        expected="a trusted file",
        suggestion="Its restrictions apply, its permissions do not. To review and trust it, run `toolcrib trust`.",
    )
    return UntrustedFile(file=path, digest=digest_of(path, source.document.content), effects=effects)


def _changed(before: WorkspaceSettings, after: WorkspaceSettings) -> list[str]:
    was = flat_settings(before)
    return [key for key, value in flat_settings(after).items() if value != was[key]]


def _safe(settings: WorkspaceSettings, problems: tuple[Problem, ...]) -> WorkspaceSettings:
    """Refuses everything after an error: the invalid part may have been a prohibition."""
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if not errors:
        return settings
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return dataclasses.replace(
        settings,
        read_only=True,
        git=GitMode.READ_ONLY,
        network=False,
        repositories=False,
        environment=(),
        readable=(),
        python=None,
        broken=f"The settings of this workspace cannot be used: {errors[0]}{more}",
    )
