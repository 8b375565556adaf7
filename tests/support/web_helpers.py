"""What the web tests share: raw requests, certificates, and a clock that is set by hand."""

import base64
import datetime as dt
import http.client
import ipaddress
import json
import socket
import ssl
from pathlib import Path

import bcrypt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.waiting import WAIT_SECONDS
from vgpu.web.config import WebConfigFile


def endpoint(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def connect(address):
    return socket.create_connection(endpoint(address), timeout=WAIT_SECONDS)


def drain(sock):
    """Everything until the other side closes; a reset counts as closing."""
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionError:
        pass
    return received


def exchange(address, request):
    """Send raw bytes and nothing more; all that comes back."""
    with connect(address) as sock:
        try:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # already refused
            pass
        return drain(sock)


def status_of(response):
    return int(response.split(b" ", 2)[1])


def fetch(address, path="/", method="GET", headers=None, tls=None, body=None):
    """One request on its own connection: (status, headers, body)."""
    host, port = endpoint(address)
    if tls is None:
        connection = http.client.HTTPConnection(host, port, timeout=WAIT_SECONDS)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=WAIT_SECONDS, context=tls)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def basic(user, password):
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def hashed(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class ConfigFile:
    """A web config file that tests rewrite; each change is seen at the next look."""

    def __init__(self, path, text):
        self.path = Path(path)
        self.clock = Clock()
        self.path.write_text(text)
        self.loaded = WebConfigFile(str(self.path), clock=self.clock)

    def rewrite(self, text):
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)
        self.touch_clock()

    def touch_clock(self):
        self.clock.now += 2.0


class Pki:
    """A certificate authority of its own, writing PEM files into a folder."""

    def __init__(self, folder, name):
        self.folder = Path(folder)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(name, self.key.public_key(), authority=True)
        self.ca = self._write(f"{name}-ca.pem", _pem(self.certificate))

    def issue(self, name, sans=("DNS:localhost", "IP:127.0.0.1")):
        """Write ``<name>.pem`` and ``<name>.key``; their paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key.public_key(), sans=sans)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return self._write(f"{name}.pem", _pem(certificate)), self._write(f"{name}.key", secret)

    def requiring_clients(self, name):
        """Write a web configuration of a server that asks for client certificates; its path."""
        certificate, key = self.issue(name)
        tls = {
            "cert_file": str(certificate),
            "key_file": str(key),
            "client_ca_file": str(self.ca),
            "client_auth_type": "RequireAndVerifyClientCert",
        }
        return self._write(
            f"{name}-web-config.json", json.dumps({"tls_server_config": tls}).encode()
        )

    def client(self, identity=None, **versions):
        """A client's context that trusts this CA and shows ``identity``."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if identity:
            context.load_cert_chain(*map(str, identity))
        for attribute, value in versions.items():
            setattr(context, attribute, value)
        return context

    def _sign(self, name, public_key, sans=(), authority=False):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if authority else self.certificate.subject
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            # What Python verifies strictly from 3.13 on, after RFC 5280.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if authority:
            usage = dict.fromkeys(
                (
                    "digital_signature",
                    "content_commitment",
                    "key_encipherment",
                    "data_encipherment",
                    "key_agreement",
                    "encipher_only",
                    "decipher_only",
                ),
                False,
            )
            builder = builder.add_extension(
                x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True
            )
        if sans:
            names = x509.SubjectAlternativeName([_general_name(san) for san in sans])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def _general_name(san):
    kind, _, value = san.partition(":")
    if kind == "IP":
        return x509.IPAddress(ipaddress.ip_address(value))
    kinds = {
        "DNS": x509.DNSName,
        "email": x509.RFC822Name,
        "URI": x509.UniformResourceIdentifier,
    }
    return kinds[kind](value)
