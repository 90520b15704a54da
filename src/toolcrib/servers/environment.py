"""The environment variables of a server's process.

In: our environment and a server's configuration. Out: the environment that `stdio` starts the process with.

A child inherits only an allow-list, because our environment may hold the keys of every other server: user and home,
locale, temporary and XDG folders, and network settings (proxies, certificate stores). A proxy URL with a password is
left out; set it in the server's `env`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

MARKER = "TOOLCRIB_CHILD"
"""Set in every child, so that all its descendants can be found."""

_ALLOWED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
    # Windows
    | {"SYSTEMROOT", "SYSTEMDRIVE", "PATHEXT", "COMSPEC", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "USERNAME"}
    | {"HOMEDRIVE", "HOMEPATH", "PROGRAMFILES", "PROGRAMDATA", "PROCESSOR_ARCHITECTURE"}
)
_ALLOWED_PREFIXES = ("LC_", "XDG_")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})


def child_environment(env: Mapping[str, str], environ: Mapping[str, str], marker: str) -> dict[str, str]:
    """`env` is the server's configured environment."""
    inherited = {name: value for name, value in environ.items() if inherits(name, value)}
    if "PATH" in inherited:
        inherited["PATH"] = _absolute(inherited["PATH"])
    return {**inherited, **env, MARKER: marker}


def _absolute(path: str) -> str:
    """Drops relative and empty entries, which would be searched in the server's start folder."""
    return os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep))) or os.defpath


def inherits(name: str, value: str) -> bool:
    upper = name.upper()
    if upper in _PROXIES:
        return not _holds_password(value)
    return name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)


def _holds_password(address: str) -> bool:
    try:
        return "@" in urlsplit(address if "://" in address else f"//{address}").netloc
    except ValueError:
        return True
