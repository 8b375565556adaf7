"""The API server to use: that of a kubeconfig, or of the pod that this runs in.

A kubeconfig can ask for proxies, other programs and more, so the official client reads it; it is
imported only then.
"""

import os
from pathlib import Path

from vgpu.apiserver import service_account
from vgpu.apiserver.access import CONNECTIONS, Access, NoAccess


def find(kubeconfig: str = "", context: str = "", connections: int = CONNECTIONS) -> Access:
    """The access, as ``ApiConnection.connect`` describes it. Raises NoAccess."""
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    home = Path.home() / ".kube" / "config"
    if not path and (context or home.exists()):
        path = str(home)
    if path:
        from vgpu.apiserver.kubeconfig import access  # noqa: PLC0415  # it is large

        return access(path, context, connections)
    try:
        return service_account.as_pod(os.environ, service_account.ACCOUNT, connections)
    except (KeyError, OSError, ValueError) as error:
        why = f"{error.args[0]} is not set" if isinstance(error, KeyError) else str(error)
        raise NoAccess(
            "no cluster is configured: pass --kubeconfig FILE or set KUBECONFIG"
            f" ({home} does not exist, and this is not a pod: {why})"
        ) from error
