"""Encrypt with RSA-4096, OAEP, SHA-1: the scheme of `!encrypted/pkcs1-oaep`; seal bytes of any size."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headgate.base.errors import HeadgateError
from headgate.gate.state.returns import Sealed

KEY_SIZE_BITS = 4_096
_OVERHEAD_BYTES = 2 * hashlib.sha1().digest_size + 2
"""Size of the padding of one piece; a key of 4096 bits leaves 470 bytes for data."""
NONCE_SIZE_BYTES = 12


class BadKey(HeadgateError, ValueError):
    """Report that a string is not a key, or that the password does not open it."""


class Unopenable(HeadgateError, ValueError):
    """Report that none of the keys decrypts a value, or that the value is damaged."""


def _padding() -> padding.OAEP:
    # The format prescribes SHA-1; the security of OAEP does not depend on its collision resistance.
    return padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)


def generate(password: str) -> tuple[str, str]:
    """Return a new key pair as PEM: the public key, and the private one encrypted with the password.  This takes about
    a second."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=KEY_SIZE_BITS)
    return public_pem(key), private_pem(key, password)


def public_pem(key: RSAPrivateKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()


def private_pem(key: RSAPrivateKey, password: str) -> str:
    how = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how).decode()


def load_private(pem: str, password: str, *, checked: bool = False) -> RSAPrivateKey:
    """Read the key. Checking its primes takes most of the time, so it is skipped for a key from the store, which was
    `checked` before it was stored. Raise BadKey."""
    try:
        key = serialization.load_pem_private_key(
            pem.encode(), password.encode(), unsafe_skip_rsa_key_validation=checked
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey("it was written with another password, or is damaged") from error
    if not isinstance(key, RSAPrivateKey):
        raise BadKey("it is not an RSA key")
    return key


def load_public(pem: str) -> RSAPublicKey:
    """Load a public key. Raise BadKey."""
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey("this is not a public key in PEM form") from error
    if not isinstance(key, RSAPublicKey):
        raise BadKey("this is not an RSA key")
    return key


def fingerprint(pem: str) -> str:
    """Return the fingerprint of a public key, short enough to compare by eye. Raise BadKey."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    der = load_public(pem).public_bytes(serialization.Encoding.DER, form)
    return f"SHA256:{base64.b64encode(hashlib.sha256(der).digest()).decode().rstrip('=')}"


def encrypt(pem: str, plain: bytes) -> list[str]:
    """Encrypt `plain` in pieces, and return them in order, as base64. Raise BadKey."""
    key = load_public(pem)
    size_bytes = key.key_size // 8 - _OVERHEAD_BYTES
    # An empty value has one empty piece, so that it can be decrypted, too.
    parts = [plain[start : start + size_bytes] for start in range(0, max(1, len(plain)), size_bytes)]
    return [base64.b64encode(key.encrypt(part, _padding())).decode() for part in parts]


def decrypt(keys: Sequence[RSAPrivateKey], pieces: Sequence[str]) -> bytes:
    """Decrypt with the first key that fits. Raise Unopenable."""
    return fitting(keys, pieces)[1]


def fitting(keys: Sequence[RSAPrivateKey], pieces: Sequence[str]) -> tuple[int, bytes]:
    """Return the index of the first key that decrypts the pieces, and the decrypted bytes. Raise Unopenable."""
    try:
        parts = [base64.b64decode("".join(piece.split()), validate=True) for piece in pieces]
    except binascii.Error as error:
        raise Unopenable("it is not base64") from error
    for index, key in enumerate(keys):
        try:
            return index, b"".join(key.decrypt(part, _padding()) for part in parts)
        except ValueError:
            # With OAEP, a wrong key shows only as a failed decryption, so each key must be tried.
            continue
    raise Unopenable("it was encrypted with another key than this project's")


def seal(pem: str, connection: str, project: str, plain: bytes) -> Sealed:
    """Encrypt bytes of any size with a fresh AES key, and that key with RSA. Raise BadKey."""
    # A fresh key for each value, so that a random nonce can never repeat under the same key.
    key, nonce = AESGCM.generate_key(256), os.urandom(NONCE_SIZE_BYTES)
    box = nonce + AESGCM(key).encrypt(nonce, plain, _about(connection, project))
    return Sealed(connection, project, tuple(encrypt(pem, key)), base64.b64encode(box).decode())


def unseal(keys: Sequence[RSAPrivateKey], sealed: Sealed) -> bytes:
    """Decrypt sealed bytes. Raise Unopenable."""
    key = decrypt(keys, sealed.key)
    try:
        box = base64.b64decode(sealed.box, validate=True)
        nonce, rest = box[:NONCE_SIZE_BYTES], box[NONCE_SIZE_BYTES:]
        return AESGCM(key).decrypt(nonce, rest, _about(sealed.connection, sealed.project))
    except (ValueError, InvalidTag) as error:
        raise Unopenable("it is damaged") from error


def _about(connection: str, project: str) -> bytes:
    # Authenticated with the data: a sealed value that is copied into another project's record cannot be opened there.
    return f"secret data\0{connection}\0{project}".encode()
