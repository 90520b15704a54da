"""How a client identifies itself at the endpoints of an authorization server.

In: the client's details. Out: the headers and fields of a request for tokens, or for their revocation. Used by
`sign_in`, `renewal` and `sign_out`.
"""

from __future__ import annotations

import base64
import secrets
import time
from typing import Any
from urllib.parse import quote

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from toolcrib.config.model import OAuthSettings
from toolcrib.errors import SignInFailed
from toolcrib.servers.account import AccountRecord

_SIGNATURES = {RSAPrivateKey: "RS256", EllipticCurvePrivateKey: "ES256", Ed25519PrivateKey: "EdDSA"}


def authenticate(record: AccountRecord, form: dict[str, str], headers: dict[str, str]) -> None:
    """Adds the client's authentication to a request for tokens, or for their revocation."""
    if record.client_auth == "client_secret_basic":
        pair = f"{quote(record.client_id, safe='')}:{quote(record.client_secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return
    form["client_id"] = record.client_id
    if record.client_auth == "client_secret_post":
        form["client_secret"] = record.client_secret


def signed_assertion(settings: OAuthSettings, audience: str) -> dict[str, str]:
    """The client's authentication by a token that it signs with its private key. Raises `SignInFailed`."""
    key: Any
    try:
        key = load_pem_private_key(settings.private_key.encode(), password=None)
        algorithm = next(name for kind, name in _SIGNATURES.items() if isinstance(key, kind))
    except (ValueError, TypeError, StopIteration):
        raise SignInFailed("its private_key is not an RSA, EC P-256 or Ed25519 key in PEM form.") from None
    now = int(time.time())
    claims = {"iss": settings.client_id, "sub": settings.client_id, "aud": audience, "iat": now, "exp": now + 300}
    return {
        "client_assertion": jwt.encode({**claims, "jti": secrets.token_hex(16)}, key, algorithm=algorithm),
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }
