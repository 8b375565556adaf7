"""The web config file as exporter-toolkit defines it: YAML in, checked structs out. Pure.

Format: docs/web-configuration.md of github.com/prometheus/exporter-toolkit. Where this differs
from it, it refuses what the toolkit accepts, never the other way round:

* a duplicate key, ``cert`` beside ``cert_file``, and TLS settings without a certificate, all of
  which the toolkit resolves silently;
* a rate limit that lets no request through.

``http2`` is accepted and has no effect: this server offers HTTP/1.1 only, and HTTP/2 is an offer
that clients do without. The limits of the TLS settings are in :mod:`vgpu.web.tls`.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from vgpu.io.unique_keys import UniqueKeyLoader
from vgpu.io.yaml_documents import NotYamlError, yaml_document
from vgpu.model.durations import parts_of

_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")


class Invalid(Exception):  # noqa: N818 - always wrapped into a WebConfigError
    """A key with a bad value; ``key`` is a dotted path, empty for the whole file."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class TlsServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tls_server_config``; PEM text or the file it is in, "" where not set."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: str = "NoClientCert"
    client_allowed_sans: tuple[str, ...] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    curve_preferences: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True


class HttpServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``http_server_config``."""

    http2: bool = True
    headers: dict[str, str] = {}


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rate_limit``; ``interval`` is a Go duration, and 0 switches the limit off."""

    interval: str | int = 0
    burst: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0

    def seconds(self) -> float:
        """The time between two requests; 0 where there is no limit.

        Raises:
            Invalid: it is not a duration, or ``burst`` would refuse every request.
        """
        text = str(self.interval)
        if text == "0":
            return 0.0
        if not _DURATION.fullmatch(text) or len(text) > 40:
            raise Invalid("rate_limit.interval", "must be a duration such as 1s or 500ms, or 0")
        seconds = float(sum(Decimal(number) * unit for number, unit in parts_of(text)))
        if seconds > 0 and self.burst < 1:
            raise Invalid("rate_limit.burst", "must be at least 1, or every request is refused")
        return seconds


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. ``tls_server_config`` is None where the server speaks plain HTTP."""

    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig = HttpServerConfig()
    basic_auth_users: dict[str, str] = {}
    rate_limit: RateLimit = RateLimit()


_SECTIONS = ("tls_server_config", "http_server_config", "rate_limit")

_HEADERS: Mapping[str, tuple[str, ...]] = {  # name -> allowed values, empty for any
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}

# 16 bytes of salt and 23 of hash; the salt's last digit carries two bits, hence [.Oeu].
_BCRYPT = re.compile(
    r"\$2[aby]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}"
)


def parse(text: bytes) -> WebConfig:
    """Decode and check a web config file, without reading the files that it names.

    Raises:
        Invalid: with the key. Neither it nor its text repeats a value that could be a secret.
    """
    tree = _load_yaml(text)
    if not isinstance(tree, dict):
        raise Invalid("", "must be a mapping of sections such as tls_server_config")
    tree = _without_nulls(tree)
    for section in _SECTIONS:
        if isinstance(tree.get(section), dict):
            tree[section] = _without_nulls(tree[section])
    if tree.get("tls_server_config") == {}:
        del tree["tls_server_config"]
    try:
        config = msgspec.convert(tree, WebConfig)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    _check_tls(config.tls_server_config)
    _check_headers(config.http_server_config.headers)
    _check_users(config.basic_auth_users)
    config.rate_limit.seconds()
    return config


def _load_yaml(text: bytes) -> Any:
    try:
        tree = yaml_document(text, UniqueKeyLoader)
    except NotYamlError as error:  # its text may quote the line, and secrets in it
        where = f" at line {error.line}" if error.line else ""
        problem = "a key appears twice; remove one" if error.is_duplicate_key else "not valid YAML"
        raise Invalid("", problem + where) from None
    return {} if tree is None else tree


def _without_nulls(mapping: dict[Any, Any]) -> dict[Any, Any]:
    """In the toolkit a key without a value is as good as absent."""
    return {key: value for key, value in mapping.items() if value is not None}


def _invalid(error: msgspec.ValidationError) -> Invalid:
    """Turn msgspec's ``… - at `$.section.key``` into a key and a problem."""
    problem, _, where = str(error).partition(" - at `$")
    key = where.strip(".`")
    prefix, _, field = problem.partition("Object contains unknown field ")
    if field and not prefix:
        name = field.strip("`")
        return Invalid(f"{key}.{name}".strip("."), "unknown key; remove it or correct its spelling")
    return Invalid(key, problem)


def _check_tls(tls: TlsServerConfig | None) -> None:
    if tls is None:
        return
    for name in ("cert", "key", "client_ca"):
        inline, file = getattr(tls, name), getattr(tls, f"{name}_file")
        if inline and file:
            raise Invalid(f"tls_server_config.{name}", f"give it or {name}_file, not both")
        if not (inline or file) and name != "client_ca":
            raise Invalid(
                f"tls_server_config.{name}_file", "missing; TLS needs a certificate and its key"
            )


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        key = f"http_server_config.headers.{name}"
        if name not in _HEADERS:
            raise Invalid(key, f"cannot be configured; allowed are {', '.join(_HEADERS)}")
        if _HEADERS[name] and value not in _HEADERS[name]:
            raise Invalid(key, f"must be {' or '.join(_HEADERS[name])}")
        if not (value.isascii() and value.isprintable()):
            raise Invalid(key, "must be printable ASCII on one line")


def _check_users(users: Mapping[str, str]) -> None:
    for user, hashed in users.items():
        if ":" in user or not user.isprintable():
            raise Invalid("basic_auth_users", f"user {user!r}: must be printable, without a colon")
        if not _BCRYPT.fullmatch(hashed):
            advice = "not a bcrypt hash; make one with: htpasswd -nBC 10 USER"
            raise Invalid(f"basic_auth_users.{user}", advice)
