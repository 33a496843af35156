"""Bytes of any size for the owner of a private key: encrypted with a fresh key, which the public key encrypts."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headgate.adapters.keys import rsa
from headgate.adapters.keys.rsa import Unopenable
from headgate.gate.returns.secrets import Sealed

NONCE_SIZE_BYTES = 12


def seal(pem: str, connection: str, project: str, plain: bytes) -> Sealed:
    """Seal bytes. Raise BadKey."""
    # A key for each text, so that a random nonce can never repeat under one.
    key, nonce = AESGCM.generate_key(256), os.urandom(NONCE_SIZE_BYTES)
    box = nonce + AESGCM(key).encrypt(nonce, plain, _about(connection, project))
    return Sealed(connection, project, tuple(rsa.encrypt(pem, key)), base64.b64encode(box).decode())


def unseal(keys: Sequence[RSAPrivateKey], sealed: Sealed) -> bytes:
    """Open sealed bytes. Raise Unopenable."""
    key = rsa.decrypt(keys, sealed.key)
    try:
        box = base64.b64decode(sealed.box, validate=True)
        nonce, rest = box[:NONCE_SIZE_BYTES], box[NONCE_SIZE_BYTES:]
        return AESGCM(key).decrypt(nonce, rest, _about(sealed.connection, sealed.project))
    except (ValueError, InvalidTag) as error:
        raise Unopenable("it is damaged") from error


def _about(connection: str, project: str) -> bytes:
    # Authenticated with the text: a sealed value that is moved to another project's record does not open there.
    return f"secret data\0{connection}\0{project}".encode()
