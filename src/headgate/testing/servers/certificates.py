"""Make certificates for servers and clients in tests, and an authority that signs them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

VALID = timedelta(days=1)
NAMES = ("authority", "server", "client", "stranger", "expired")


@dataclass(frozen=True, slots=True)
class GeneratedCertificates:
    """Name PEM files; those of servers and clients hold both key and certificate."""

    authority: Path
    server: Path
    client: Path
    stranger: Path
    """Certificate of another authority."""
    expired: Path


def make(directory: Path) -> GeneratedCertificates:
    directory.mkdir(parents=True, exist_ok=True)
    ours, theirs = _Authority("ours"), _Authority("theirs")
    files = GeneratedCertificates(*(directory / f"{name}.pem" for name in NAMES))
    files.authority.write_bytes(ours.certificate.public_bytes(Encoding.PEM))
    files.server.write_bytes(ours.sign("server"))
    files.client.write_bytes(ours.sign("client"))
    files.stranger.write_bytes(theirs.sign("stranger"))
    files.expired.write_bytes(ours.sign("expired", valid=timedelta(minutes=-1)))
    return files


class _Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self._name, self._key.public_key())
        self.certificate = builder.add_extension(constraint, critical=True).sign(self._key, SHA256())

    def sign(self, name: str, valid: timedelta = VALID) -> bytes:
        """Return a new key and its certificate for `name`, which is valid for the time `valid` from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        where = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))])
        builder = self._builder(subject, key.public_key(), valid)
        certificate = builder.add_extension(where, critical=False).sign(self._key, SHA256())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return pem + certificate.public_bytes(Encoding.PEM)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, valid: timedelta = VALID
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # Earlier than now, since clocks of containers and hosts may differ a little.
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + valid)
        )
