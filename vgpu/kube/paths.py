"""Where the kinds of object live at the API server. No name can leave its place in a path."""

from enum import StrEnum
from urllib.parse import quote

from vgpu.kube.connection import NOT_FOUND, ClusterError


class ApiKind(StrEnum):
    """A kind; the value is the path of all its objects."""

    PODS = "/api/v1/pods"
    NODES = "/api/v1/nodes"
    CONFIG_MAPS = "/api/v1/configmaps"
    EVENTS = "/api/v1/events"
    LEASES = "/apis/coordination.k8s.io/v1/leases"
    SHARE_PODS = "/apis/kubeshare.nthu/v1/sharepods"

    def all(self, namespace: str = "") -> str:
        """The path of those of a namespace, or of all if it is ""."""
        root, _, plural = self.rpartition("/")
        return f"{root}/namespaces/{_segment(namespace)}/{plural}" if namespace else str(self)

    def one(self, namespace: str, name: str, below: str = "") -> str:
        """The path of one object, or of its subresource ``below``.

        ``namespace`` is "" for a kind that has none. Raises ClusterError NotFound for no name: that
        path would be everybody's.
        """
        if not name:
            raise ClusterError(NOT_FOUND, "NotFound", f"{self.name} without a name")
        path = f"{self.all(namespace)}/{_segment(name)}"
        return f"{path}/{below}" if below else path


def of_object(group: str, version: str, plural: str, namespace: str, name: str) -> str:
    """The path of one namespaced object of any API group but the core's.

    Raises ClusterError NotFound where a part is missing: the path would be another's.
    """
    parts = (group, version, "namespaces", namespace, plural, name)
    if not all(parts):
        raise ClusterError(NOT_FOUND, "NotFound", "an object without a group, kind or name")
    return "/apis/" + "/".join(map(_segment, parts))


def _segment(text: str) -> str:
    """One segment of a path: ``.`` and ``..``, too, would be taken for something else."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted
