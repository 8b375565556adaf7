"""Access by a kubeconfig, as the official client reads it; nothing else of the client is used."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from kubernetes import client, config

from vgpu.kube.access import CONNECTIONS, Access, NoAccess
from vgpu.kube.errors import one_line
from vgpu.kube.tls import with_own_connections

_QUOTED: Final = 400
"""Maximum length of the quoted output of a credential plugin."""


def access(path: str, context: str = "", connections: int = CONNECTIONS) -> Access:
    """The cluster of a context, or of the current one; ``connections`` are kept open.

    Raises NoAccess.
    """
    configuration = client.Configuration(host="")
    configuration.connection_pool_maxsize = connections
    try:
        with _complaints() as complaints:
            config.load_kube_config(path, context or None, configuration, persist_config=False)
        pool = with_own_connections(client.ApiClient(configuration).rest_client.pool_manager)
    except (
        Exception
    ) as error:  # the library checks little of the file, so any exception is possible
        if not any(map(os.path.exists, path.split(os.pathsep))):
            raise NoAccess(f"{path}: no such file") from error
        raise NoAccess(f"{path} is not a usable kubeconfig: {_problem(error)}") from error
    if complaints:  # the library would go on without credentials
        raise NoAccess(f"{path}: the user's credential plugin failed: {complaints[0]}")
    if not configuration.host:
        raise NoAccess(f"{path}: the cluster has no server")

    def credentials() -> Mapping[str, str]:
        return {auth["key"]: auth["value"] for auth in configuration.auth_settings().values()}

    return Access(configuration.host.rstrip("/"), pool, credentials)


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
        return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, (TypeError, AttributeError, LookupError)):
        return f"it has not the form of one ({one_line(str(error))})"
    return one_line(str(error))
