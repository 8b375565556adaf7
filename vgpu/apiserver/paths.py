"""Paths of objects at the API server. No name can leave its segment of a path."""

from typing import Any
from urllib.parse import quote

from vgpu.apiserver.connection import NOT_FOUND, ClusterError
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.verbs import ApiVerb


def path_of(kind: ApiKind[Any], verb: ApiVerb, namespace: str = "", name: str = "") -> str:
    """The path of a request; ``namespace`` "" means all of them, or a kind that has none.

    Raises ClusterError NotFound for an object without a name: the path would be that of all.
    """
    root = f"/apis/{kind.api_version}" if "/" in kind.api_version else f"/api/{kind.api_version}"
    place = f"/namespaces/{_segment(namespace)}" if namespace else ""
    path = f"{root}{place}/{kind.plural}"
    if not verb.names_object:
        return path
    if not name:
        raise ClusterError(NOT_FOUND, "NotFound", f"{kind.plural} without a name")
    return "/".join(filter(None, (path, _segment(name), verb.subresource)))


def of_object(group: str, version: str, plural: str, namespace: str, name: str) -> str:
    """The path of one namespaced object of any API group but the core's.

    Raises ClusterError NotFound if a part is missing: the path would be another object's.
    """
    parts = (group, version, "namespaces", namespace, plural, name)
    if not all(parts):
        raise ClusterError(NOT_FOUND, "NotFound", "an object without a group, kind or name")
    return "/apis/" + "/".join(map(_segment, parts))


def _segment(text: str) -> str:
    """One segment of a path; ``.`` and ``..`` are quoted, too, since they have a meaning."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted
