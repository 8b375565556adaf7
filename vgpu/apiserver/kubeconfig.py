"""Access by a kubeconfig, as the official client reads it; nothing else of the client is used.

The programs that a kubeconfig names for its user's credentials end in time:

    seconds of a program <= ATTENDED_SECONDS where a person is at a terminal, else ALONE_SECONDS
    bytes of its output <= LONGEST_OUTPUT

kubectl waits for such a program for ever, and so does the official client. Without a terminal the
program is the leader of its session, and all of the session ends with it; at a terminal it may ask
there, and a login by browser prints there where to go on.
"""

import logging
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import IO, Any, Final

from kubernetes import client, config
from kubernetes.config import exec_provider, kube_config
from urllib3.exceptions import LocationValueError

from vgpu.apiserver.access import CONNECTIONS, Access, NoAccess, with_own_connections
from vgpu.io.http_client import BadUrl, HttpUrl, UrlWithUser, is_header_value
from vgpu.kube.errors import one_line

ATTENDED_SECONDS: Final = 300.0
"""Maximum time for a program while a person may log in, in seconds."""

ALONE_SECONDS: Final = 30.0
"""Maximum time for a program without a terminal, in seconds."""

LONGEST_OUTPUT: Final = 1024 * 1024
"""Maximum size of a program's output, in bytes; a token or a certificate is some KiB."""

_READ_BYTES: Final = 64 * 1024
_STANDARD_FILES: Final = (0, 1, 2)


class PluginError(Exception):
    """A program was ended; the message names it, without its arguments, which may be secrets."""


def is_attended(files: Iterable[int] = _STANDARD_FILES) -> bool:
    """Whether one of these files, the standard ones, is a terminal."""
    return any(map(os.isatty, files))


def plugin_seconds() -> float:
    """Maximum time for a program now, in seconds."""
    return ATTENDED_SECONDS if is_attended() else ALONE_SECONDS


class CredentialPlugin(subprocess.Popen[str]):
    """A program as the official client starts it."""

    def __init__(self, args: list[str], **options: Any) -> None:
        self._is_alone = not is_attended()
        if self._is_alone:
            options |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
        elif os.isatty(2):
            options["stderr"] = None  # where to log in is printed there
        self._deadline = time.monotonic() + plugin_seconds()
        super().__init__(args, **options)

    def communicate(self, *_: Any, **__: Any) -> tuple[str, Any]:
        """The output and the errors once the program has ended. Raises PluginError."""
        texts = {file: bytearray() for file in (self.stdout, self.stderr) if file is not None}
        try:
            self._read(texts)
            self.wait(self._left())
        except subprocess.TimeoutExpired:
            self._kill()
            raise self._too_slow() from None
        except BaseException:
            self._kill()
            raise
        finally:
            for file in texts:
                file.close()
        output, errors = (
            None if file is None else texts[file].decode(errors="replace")
            for file in (self.stdout, self.stderr)
        )
        return output or "", errors

    def _read(self, texts: Mapping[IO[str], bytearray]) -> None:
        """Read each file to its end."""
        with selectors.DefaultSelector() as selector:
            for file, text in texts.items():
                selector.register(file, selectors.EVENT_READ, text)
            while selector.get_map():
                for key, _ in selector.select(self._left()):
                    data = os.read(key.fd, _READ_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    key.data.extend(data)
                    if len(key.data) > LONGEST_OUTPUT:
                        raise PluginError(f"{self._command} prints more than a credential")

    @property
    def _command(self) -> str:
        args: Any = self.args
        return f"the command {str(args[0])!r}"

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_slow()
        return left

    def _too_slow(self) -> PluginError:
        return PluginError(f"{self._command} has not ended within {plugin_seconds():g} s")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            if self._is_alone:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self.kill()
        self.wait()


_QUOTED: Final = 400
"""Maximum length of the quoted output of a credential plugin."""

GRACE_SECONDS: Final = 5.0
"""Maximum time for all but a credential plugin, in seconds."""

# The library waits for the programs that it starts for ever.
exec_provider.subprocess = kube_config.subprocess = SimpleNamespace(
    PIPE=subprocess.PIPE, Popen=CredentialPlugin
)


def access(path: str, context: str = "", connections: int = CONNECTIONS) -> Access:
    """The cluster of a context, or of the current one; ``connections`` are kept open.

    Raises NoAccess.
    """
    configuration = client.Configuration(host="")
    configuration.connection_pool_maxsize = connections
    try:
        with _complaints() as complaints:
            _in_time(
                lambda: config.load_kube_config(
                    path, context or None, configuration, persist_config=False
                )
            )
        _expect_no_password(configuration.host)
        pool = with_own_connections(client.ApiClient(configuration).rest_client.pool_manager)
    except Exception as error:  # noqa: BLE001  # the library checks little of the file
        if not any(map(os.path.exists, path.split(os.pathsep))):
            raise NoAccess(f"{path}: no such file") from None
        problem = _problem(error)  # no cause: its text may quote a token
        raise NoAccess(f"{path} is not a usable kubeconfig: {problem}") from None
    if complaints:  # the library would go on without credentials
        raise NoAccess(f"{path}: the user's credential plugin failed: {complaints[0]}")
    if not configuration.host:
        raise NoAccess(f"{path}: the cluster has no server")

    def credentials() -> Mapping[str, str]:
        headers = {auth["key"]: auth["value"] for auth in configuration.auth_settings().values()}
        if not all(map(is_header_value, headers.values())):
            problem = "has line breaks or other characters that HTTP cannot carry"
            raise NoAccess(f"{path}: the user's token or password {problem}")
        return headers

    credentials()
    return Access(configuration.host.rstrip("/"), pool, credentials)


def _in_time(load: Callable[[], object]) -> None:
    """Load within a time: the library waits for an identity provider (OIDC) for ever."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            load()
        except BaseException as error:  # noqa: BLE001  # it is raised by the caller's thread
            failed.append(error)

    seconds = plugin_seconds()
    thread = threading.Thread(target=run, name="kubeconfig", daemon=True)
    thread.start()
    thread.join(seconds + GRACE_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"its user's credentials have not come within {seconds:g} s")
    if failed:
        raise failed[0]


def _expect_no_password(server: str) -> None:
    """Raises ValueError for a URL with a user, which messages would show; without it, if any.

    Behind an unquoted "#", "?" or "/" of a password the user would look like part of the path.
    """
    try:
        HttpUrl.parse(server if "://" in server else f"http://{server}")
        if "@" in server:
            raise UrlWithUser("a password in it would be seen")
    except BadUrl as error:
        if server:
            raise ValueError(f"the cluster's server: {error}") from None


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the library logs while it reads a kubeconfig: it only logs a plugin's failure."""
    complaints: list[str] = []
    root = logging.getLogger()
    handlers = root.handlers[:]

    def keep(record: logging.LogRecord) -> bool:
        if record.module != "kube_config":
            return True
        message = one_line(record.getMessage())
        # The library's own defect: on a terminal it has not read the plugin's standard error.
        complaints.append("it printed why" if "NoneType" in message else message[:_QUOTED])
        return False

    root.addFilter(keep)
    try:
        yield complaints
    finally:
        root.removeFilter(keep)
        root.handlers[:] = handlers  # logging adds one to a logger without any


def _problem(error: Exception) -> str:
    """The problem on one line; of YAML with its place."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        what = _unquoted(getattr(error, "problem", ""))
        return f"line {mark.line + 1}, column {mark.column + 1}: {what}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeError):
        return "a text in it has characters that cannot be used there"
    if isinstance(error, LocationValueError):
        return "a URL in it is none"
    if isinstance(error, (TypeError, AttributeError, LookupError)):
        return f"it has not the form of one ({one_line(str(error))})"
    return one_line(str(error))


def _unquoted(problem: str) -> str:
    """The problem of YAML without what it quotes, which may be a token."""
    return re.split("['\"]", problem, maxsplit=1)[0].rstrip()
