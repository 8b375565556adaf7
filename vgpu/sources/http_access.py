"""What a client of HTTP shows a server: certificates and a password, from files.

Flags begin with a prefix: ``--`` for a command with one server, ``--tokens.`` beside others.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from vgpu.model.reasons import SourceError
from vgpu.sources.files import read_file

if TYPE_CHECKING:
    import ssl

PASSWORD_LIMIT: Final = 4096
"""Maximum size of a file with a password, in bytes."""


class BadOption(Exception):  # noqa: N818  # as click calls its own
    """A flag's value cannot be used; the message names the flag."""


class ClientOptions(msgspec.Struct, frozen=True):
    """Credentials that the server may require; all but the names are paths.

    ``server_name`` is the name in its certificate, if that is not the host of its URL.
    """

    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None
    username: str | None = None
    password_file: str | None = None
    server_name: str | None = None

    @property
    def needs_tls(self) -> bool:
        """Whether some of them are of no use without TLS."""
        return any((self.ca_file, self.cert, self.key, self.server_name))


NO_CREDENTIALS: Final = ClientOptions()


def tls_context(access: ClientOptions, prefix: str = "--") -> "ssl.SSLContext":
    """The certificates, read now. Raises BadOption."""
    import ssl  # noqa: PLC0415  # only if it is asked

    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ValueError) as error:
        raise BadOption(f"{prefix}ca-file {access.ca_file}: {_error_text(error)}") from error
    if access.cert is None:
        if access.key is not None:
            raise BadOption(f"{prefix}key needs {prefix}cert")
        return context
    try:
        context.load_cert_chain(access.cert, access.key, password=_no_password)
    except (OSError, ValueError) as error:
        flags = f"{prefix}cert {access.cert}" + (f" {prefix}key {access.key}" if access.key else "")
        raise BadOption(f"{flags}: {_error_text(error)}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _error_text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or "no certificate in it"


def authorization(access: ClientOptions, prefix: str = "--") -> Mapping[str, str]:
    """The header with the password, read now. Raises BadOption."""
    if access.username is None and access.password_file is None:
        return {}
    if access.username is None or access.password_file is None:
        raise BadOption(f"{prefix}username and {prefix}password-file belong together")
    try:
        password = read_file(access.password_file, PASSWORD_LIMIT, follow=True).rstrip(b"\r\n")
    except SourceError as error:
        raise BadOption(f"{prefix}password-file: {error}") from error
    try:
        user = access.username.encode()
    except UnicodeError:
        raise BadOption(f"{prefix}username is not UTF-8") from None
    if b":" in user:  # RFC 7617
        raise BadOption(f"{prefix}username has a colon")
    pair = user + b":" + password
    return {"Authorization": f"Basic {b64encode(pair).decode()}"}
