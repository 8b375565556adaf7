"""TLS from the web config file's ``tls_server_config``, on the standard library's ``ssl``.

Every setting is honoured or refused, never ignored. Refused, although exporter-toolkit has them:

* ``RequestClientCert`` and ``RequireAnyClientCert``: ``ssl`` cannot ask for a certificate without
  verifying it, and an unverified certificate protects nothing;
* verification of clients without a CA of your own (the toolkit would trust every public CA), and
  a CA that contains no certificate;
* TLS 1.0 and 1.1 (RFC 8996), and cipher suites without forward secrecy;
* more than one entry in ``curve_preferences``: ``ssl`` can set one curve.

As in the toolkit, ``cipher_suites`` applies to TLS 1.2; those of TLS 1.3 are fixed and all secure.
"""

import os
import socket
import ssl
from collections.abc import Callable

import msgspec

from vgpu.web.message import BadRequest
from vgpu.web.names import canonical_name
from vgpu.web.schema import Invalid, TlsServerConfig

_HANDSHAKE_RECORD = b"\x16"
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_UNVERIFIED_CLIENT_AUTH = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")

_CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}

_TLS13_CIPHERS = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
_TLS12_CIPHERS = {  # the names of Go's crypto/tls -> OpenSSL's
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}


class ServerTls(msgspec.Struct, frozen=True):
    """How to answer a TLS client; ``allowed_sans`` None admits every verified one."""

    context: ssl.SSLContext
    allowed_sans: frozenset[str] | None

    def wrap(self, sock: socket.socket, timeout: float) -> ssl.SSLSocket:
        """The socket for a handshake, which owns ``sock`` from here on.

        Separate from the handshake, so that the connection can be closed during it.

        Raises:
            BadRequest: the client speaks plain HTTP and gets this answer.
            OSError: the client is gone, too slow, or not a TLS client.
        """
        sock.settimeout(timeout)
        first = sock.recv(1, socket.MSG_PEEK)
        if first != _HANDSHAKE_RECORD:
            if first.isalpha():
                raise BadRequest(400, "this port speaks HTTPS; the request was plain HTTP")
            raise ConnectionError("not a TLS client")
        return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def handshake(self, secured: ssl.SSLSocket) -> frozenset[str]:
        """Do the server's side within the ``timeout`` of ``wrap``; the names of a verified client.

        Raises:
            OSError: the client is gone, too slow, or not admitted.
        """
        secured.do_handshake()
        names = (secured.getpeercert() or {}).get("subjectAltName", ())
        sans = frozenset(canonical_name(str(name[1])) for name in names)
        if self.allowed_sans is not None and not self.allowed_sans & sans:
            raise ConnectionError("no name in the client's certificate is allowed")
        return sans


def server_tls(config: TlsServerConfig, read: Callable[[str], bytes]) -> ServerTls:
    """Make the context; ``read`` gives the content of a file that the config names.

    Raises:
        Invalid: a setting that is wrong or cannot be honoured.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.num_tickets = 0  # no resumption in TLS 1.3: every client proves itself again
    try:
        _set_versions(context, config)
        _set_ciphers(context, config)
        _set_curve(context, config)
    except (ssl.SSLError, ValueError) as error:  # e.g. a system-wide policy of OpenSSL
        raise Invalid("tls_server_config", f"OpenSSL refuses it: {error}") from None
    _load_certificate(context, config, read)
    _set_client_auth(context, config, read)
    sans = config.client_allowed_sans
    return ServerTls(context, None if sans is None else frozenset(map(canonical_name, sans)))


def _set_versions(context: ssl.SSLContext, config: TlsServerConfig) -> None:
    for key, version in (("min_version", config.min_version), ("max_version", config.max_version)):
        if version not in _VERSIONS:
            raise Invalid(f"tls_server_config.{key}", f"must be one of {', '.join(_VERSIONS)}")
    if config.min_version > config.max_version:
        raise Invalid("tls_server_config.min_version", "is above max_version")
    context.minimum_version = _VERSIONS[config.min_version]
    context.maximum_version = _VERSIONS[config.max_version]


def _set_ciphers(context: ssl.SSLContext, config: TlsServerConfig) -> None:
    key = "tls_server_config.cipher_suites"
    if not config.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if not config.cipher_suites:
        return
    for name in config.cipher_suites:
        if name not in _TLS12_CIPHERS and name not in _TLS13_CIPHERS:
            raise Invalid(key, f"{name!r} is unknown or has no forward secrecy")
    names = [_TLS12_CIPHERS[name] for name in config.cipher_suites if name in _TLS12_CIPHERS]
    if names:
        context.set_ciphers(":".join(names))
    elif config.max_version == "TLS12":
        raise Invalid(key, "names no cipher suite of TLS 1.2, and max_version allows no other")
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _set_curve(context: ssl.SSLContext, config: TlsServerConfig) -> None:
    key = "tls_server_config.curve_preferences"
    for name in config.curve_preferences:
        if name not in _CURVES:
            raise Invalid(key, f"must be one of {', '.join(_CURVES)}")
    if len(config.curve_preferences) > 1:
        raise Invalid(key, "only one curve can be set; name the one to insist on, or remove it")
    for name in config.curve_preferences:
        context.set_ecdh_curve(_CURVES[name])


def _load_certificate(
    context: ssl.SSLContext, config: TlsServerConfig, read: Callable[[str], bytes]
) -> None:
    cert, cert_key = _pem(config, "cert", read)
    key, key_key = _pem(config, "key", read)
    if b"-----BEGIN CERTIFICATE-----" not in cert:
        raise Invalid(cert_key, "contains no PEM certificate")
    if b"PRIVATE KEY-----" not in key:
        raise Invalid(key_key, "contains no PEM private key")
    if b"ENCRYPTED" in key:
        raise Invalid(key_key, "is encrypted; give it without a passphrase")
    try:
        with _InMemory(cert) as cert_path, _InMemory(key) as key_path:
            context.load_cert_chain(cert_path, key_path, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise Invalid(key_key, "is not the private key of the certificate") from None
        raise Invalid(cert_key, f"cannot be loaded: {error.reason}") from None


def _set_client_auth(
    context: ssl.SSLContext, config: TlsServerConfig, read: Callable[[str], bytes]
) -> None:
    key, kind = "tls_server_config.client_auth_type", config.client_auth_type
    has_ca = bool(config.client_ca or config.client_ca_file)
    if kind in _UNVERIFIED_CLIENT_AUTH:
        raise Invalid(
            key, f"{kind} does not verify the certificate; use RequireAndVerifyClientCert"
        )
    if kind not in _CLIENT_AUTH:
        raise Invalid(key, f"must be one of {', '.join(_CLIENT_AUTH)}")
    if has_ca and kind == "NoClientCert":
        raise Invalid(key, "a client CA is set; set RequireAndVerifyClientCert, or remove the CA")
    if not has_ca and kind != "NoClientCert":
        raise Invalid("tls_server_config.client_ca_file", f"missing; {kind} needs it")
    if config.client_allowed_sans is not None:
        if kind != "RequireAndVerifyClientCert":
            raise Invalid(key, "client_allowed_sans needs RequireAndVerifyClientCert")
        if not config.client_allowed_sans:
            raise Invalid(
                "tls_server_config.client_allowed_sans", "is empty: no client could connect"
            )
    if not has_ca:
        return
    authority, authority_key = _pem(config, "client_ca", read)
    try:
        with _InMemory(authority) as path:
            context.load_verify_locations(path)
    except ssl.SSLError:
        raise Invalid(authority_key, "contains no usable PEM certificate") from None
    context.verify_mode = _CLIENT_AUTH[kind]
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate may be the CA


def _pem(config: TlsServerConfig, name: str, read: Callable[[str], bytes]) -> tuple[bytes, str]:
    """The PEM text of ``name`` or ``name_file``, and the key it came from."""
    file = getattr(config, f"{name}_file")
    if not file:
        return getattr(config, name).encode(errors="replace"), f"tls_server_config.{name}"
    key = f"tls_server_config.{name}_file"
    try:
        return read(file), key
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise Invalid(key, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


class _InMemory:
    """Bytes as a file that never touches a disk: OpenSSL's loaders want a path."""

    def __init__(self, content: bytes) -> None:
        self._fd = os.memfd_create("vgpu-tls", os.MFD_CLOEXEC)
        os.write(self._fd, content)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
