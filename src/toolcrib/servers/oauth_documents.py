"""Checks the metadata documents of a sign-in, and reads the error answers of its endpoints.

In: documents from a server and its authorization server. Out: nothing, or `SignInFailed`; `obstacles` has the reasons
why documents could not be used. Used by `sign_in`, before the SDK reads them.
"""

from __future__ import annotations

import json
from typing import Any

from mcp.shared.auth import OAuthMetadata
from pydantic import ValidationError

from toolcrib.config.masking import printable
from toolcrib.errors import SignInFailed
from toolcrib.servers.checked_http import CheckedHttp
from toolcrib.servers.web import shown_url

_LONGEST_REASON = 300
"""Characters of an error that the other side wrote."""
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint")


class OAuthDocuments:
    def __init__(self, http: CheckedHttp, *, needs_pkce: bool) -> None:
        self._http = http
        self._needs_pkce = needs_pkce
        self.obstacles: list[str] = []

    def check(self, url: str, body: bytes) -> None:
        """Raises `SignInFailed` for what no sign-in may use."""
        where = shown_url(url)
        try:
            document: Any = json.loads(body)
        except (ValueError, RecursionError):
            self.obstacles.append(f"{where} is not JSON")
            return
        if not isinstance(document, dict):
            self.obstacles.append(f"{where} is not a JSON object")
            return
        servers = document.get("authorization_servers")
        named = [("authorization server", one) for one in servers[:1]] if isinstance(servers, list) else []
        named += [(name, document.get(name)) for name in _ENDPOINTS]
        for name, address in named:
            if isinstance(address, str):
                self._http.check(address, f"The {name} in {where}")
        methods = document.get("code_challenge_methods_supported")
        if self._needs_pkce and isinstance(methods, list) and "S256" not in methods:
            raise SignInFailed(f"{where} does not offer PKCE with S256, without which a sign-in can be intercepted.")
        if servers is None:
            try:
                OAuthMetadata.model_validate(document)
            except ValidationError as error:
                found = error.errors(include_input=False, include_url=False, include_context=False)[0]
                self.obstacles.append(cut(f"{where}: {'.'.join(map(str, found['loc']))}: {found['msg']}"))


def cut(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_REASON else shown[: _LONGEST_REASON - 1] + "…"


def error_in(body: bytes) -> tuple[str, str]:
    """The code in an error answer, and a text for people. Anything but the documented JSON is not shown."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(document, dict) or not isinstance(code := document.get("error"), str):
        return "", ""
    described = document.get("error_description")
    text = f"{code}: {described}" if isinstance(described, str) and described else code
    return code, f", {cut(text).rstrip('.')}"
