"""A bearer check in front of a real server of any transport: a loopback proxy that asks `authorization_server.py`.

In: requests, one per connection. Out: those with a valid token reach the server; the others get a 401 or a 403.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from conformance.forwarder import Forwarder
from parts.authorization_server import AuthorizationServer


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A request as it arrived."""

    verb: str
    headers: dict[str, str]
    """With names in lower case."""
    status: int
    """The status of the check: 200, 401 or 403."""

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


class BearerGuard(Forwarder):
    def __init__(self, target: str, authorization: AuthorizationServer) -> None:
        super().__init__(target, "")
        self.authorization = authorization
        self.demands = ""
        """A scope that no token has."""
        self.requests: list[Guarded] = []

    def protect(self, url: str) -> str:
        """Names this server in the authorization server's metadata; returns its address."""
        self.authorization.changes["resource_metadata"] = {"resource": url.replace("ws://", "http://")}
        return url

    def refusal(self, head: bytes) -> bytes:
        request, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        grant = self.authorization.grants.get(headers.get("authorization", "").removeprefix("Bearer "))
        known = grant is not None and grant.kind == "access" and grant.ends > time.monotonic()
        status = 401 if not known else 403 if self.demands else 200
        self.requests.append(Guarded(verb=request.split()[0], headers=headers, status=status))
        if status == 200:
            return b""
        metadata = f"{self.authorization.issuer}/.well-known/oauth-protected-resource/mcp"
        lacks = f'error="insufficient_scope", scope="{self.demands}", ' if status == 403 else ""
        challenge = f'WWW-Authenticate: Bearer {lacks}resource_metadata="{metadata}"'
        return f"HTTP/1.1 {status} Refused\r\n{challenge}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()

    def added(self, lines: list[bytes]) -> list[bytes]:
        return [next((line for line in lines if line.lower() == b"connection: upgrade"), b"Connection: close")]
