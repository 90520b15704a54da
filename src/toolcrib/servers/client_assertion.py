"""A client's authentication by a token that it signs with its private key.

In: the client's details. Out: fields of a request for tokens. Used by `sign_in`. Loads OpenSSL.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from toolcrib.config.model import OAuthSettings
from toolcrib.errors import SignInFailed

_SIGNATURES = {RSAPrivateKey: "RS256", EllipticCurvePrivateKey: "ES256", Ed25519PrivateKey: "EdDSA"}


def signed_assertion(settings: OAuthSettings, audience: str) -> dict[str, str]:
    """Raises `SignInFailed`."""
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
