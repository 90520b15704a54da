"""How a client identifies itself at the endpoints of an authorization server.

In: the client's details. Out: the headers and fields of a request for tokens, or for their revocation. Used by
`renewal` and `sign_out`; `client_assertion` has what needs a private key.
"""

from __future__ import annotations

import base64
from urllib.parse import quote

from toolcrib.servers.account import AccountRecord


def authenticate(record: AccountRecord, form: dict[str, str], headers: dict[str, str]) -> None:
    """Adds the client's authentication to a request for tokens, or for their revocation."""
    if record.client_auth == "client_secret_basic":
        pair = f"{quote(record.client_id, safe='')}:{quote(record.client_secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return
    form["client_id"] = record.client_id
    if record.client_auth == "client_secret_post":
        form["client_secret"] = record.client_secret
