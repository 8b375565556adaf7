"""The certificates of one cluster: an authority, what it signs, and the ServiceAccount key.

All keys are P-256: made in a millisecond, and what the API server signs tokens with as well.
"""

import datetime as dt
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=30)
BACKDATED = dt.timedelta(minutes=10)


class KeyPair(NamedTuple):
    """Two PEM files: a certificate (or public key), and the private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder of its own, which it makes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test bed")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        self.ca = self._write("ca", builder, self._key)

    def client(self, file: str, user: str, group: str = "") -> KeyPair:
        """A client certificate: ``user`` is its common name, ``group`` its organization."""
        return self._sign(file, _name(user, group), ExtendedKeyUsageOID.CLIENT_AUTH)

    def server(self, file: str, *hosts: str) -> KeyPair:
        """A serving certificate for names and addresses."""
        return self._sign(file, _name(hosts[0]), ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def service_account_key(self) -> KeyPair:
        """A public and a private key without a certificate, to sign tokens with."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return self._files("service-account", public, key)

    def _sign(
        self,
        file: str,
        name: x509.Name,
        usage: x509.ObjectIdentifier,
        hosts: Iterable[str] = (),
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, self._name, key).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if hosts:
            names = x509.SubjectAlternativeName(map(_host, hosts))
            builder = builder.add_extension(names, critical=False)
        return self._write(file, builder, key)

    def _write(
        self, file: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
    ) -> KeyPair:
        certificate = builder.sign(self._key, hashes.SHA256())
        return self._files(file, certificate.public_bytes(serialization.Encoding.PEM), key)

    def _files(self, file: str, public: bytes, key: ec.EllipticCurvePrivateKey) -> KeyPair:
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.certificate.write_bytes(public)
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _name(common: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
    )
