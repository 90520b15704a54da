"""What `sealing` uses of OpenSSL, which it loads when it is first used."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["AESGCM", "InvalidTag"]
