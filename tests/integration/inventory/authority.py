"""Provide certificates that identify callers in tests."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headgate.web.peers.connections import Tls


class Authority:
    """Issue certificates."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        made = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *, project: str = "", role: str = "", partition: str = "") -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [(NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, project)]
        attributes += [(NameOID.ORGANIZATIONAL_UNIT_NAME, role), (NameOID.LOCALITY_NAME, partition)]
        subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes if value])
        made = self._builder(subject, key).add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
        plain = serialization.NoEncryption()
        return (
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain),
        )

    def files(self, directory: Path) -> Tls:
        """Write what a server on localhost needs whose clients present certificates of this authority."""
        names = ("certificate", "key", "authority")
        for name, content in zip(names, (*self.issue("localhost"), self.pem), strict=True):
            (directory / name).write_bytes(content)
        return Tls(*(directory / name for name in names))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
