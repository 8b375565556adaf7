"""Access by a kubeconfig, as the official client reads it; nothing else of the client is used."""

import os
from collections.abc import Mapping

from kubernetes import client, config

from vgpu.kube.access import Access, NoAccess


def access(path: str, context: str = "") -> Access:
    """The cluster of a context, or of the current one. Raises NoAccess."""
    configuration = client.Configuration(host="")
    try:
        config.load_kube_config(path, context or None, configuration, persist_config=False)
        pool = client.ApiClient(configuration).rest_client.pool_manager
    except (
        Exception
    ) as error:  # the library checks little of the file, so any exception is possible
        missing = "" if any(map(os.path.exists, path.split(os.pathsep))) else "no such file: "
        raise NoAccess(f"{path}: {missing}{error}") from error
    if not configuration.host:
        raise NoAccess(f"{path}: the cluster has no server")

    def credentials() -> Mapping[str, str]:
        return {auth["key"]: auth["value"] for auth in configuration.auth_settings().values()}

    return Access(configuration.host.rstrip("/"), pool, credentials)
