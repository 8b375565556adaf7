"""The names of the kubelet's log folders and links. Only names are read.

``/var/log/pods/<namespace>_<pod>_<uid>`` is a folder for each pod on the node, and
``/var/log/containers/<pod>_<namespace>_<container>-<64 hex digits>.log`` a link for each
container (kubernetes ``pkg/kubelet/kuberuntime``). No Kubernetes name contains an underscore. The
kubelet cuts what is before ``.log`` so that the name has 255 bytes (``logSymlink`` in
``kuberuntime/legacy.go``): with long names the last digits are missing.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from vgpu.model.facts import ContainerName
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, Rejection
from vgpu.sources.files import KeptResults, list_folder, printable
from vgpu.sources.samples import ID_DIGITS, MIN_ID_DIGITS

T = TypeVar("T")

MAX_ENTRIES = 16_384
"""Maximum number of entries read from one folder; the kubelet runs some hundred pods at most."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = rf"(?P<namespace>{_LABEL})"
_POD = r"(?P<pod>[a-z0-9][-a-z0-9.]{0,252})"
_POD_FOLDER = re.compile(rf"{_NAMESPACE}_{_POD}_(?P<uid>[0-9A-Za-z-]{{1,64}})", re.ASCII)
_ID = rf"(?P<id>[0-9a-f]{{{MIN_ID_DIGITS},{ID_DIGITS}}})"
_CONTAINER_LINK = re.compile(rf"{_POD}_{_NAMESPACE}_(?P<container>{_LABEL})-{_ID}\.log", re.ASCII)


def parse_pod_folder(name: str) -> PodRef | None:
    """``<namespace>_<pod>_<uid>``; None if the name is anything else."""
    match = _POD_FOLDER.fullmatch(name)
    return match and PodRef(match["uid"], match["namespace"], match["pod"])


def parse_container_link(name: str) -> tuple[str, ContainerName] | None:
    """The container id, or as much of it as the link has, and its names; None for other names."""
    match = _CONTAINER_LINK.fullmatch(name)
    return match and (
        match["id"],
        ContainerName(match["namespace"], match["pod"], match["container"]),
    )


_parsed_folders = KeptResults(parse_pod_folder)
_parsed_links = KeptResults(parse_container_link)


def read_pod_folders(path: str) -> tuple[dict[str, PodRef], tuple[Rejection, ...]]:
    """Pod UID -> names, of every log folder below ``path``. Raises SourceError.

    A UID that would get two names gets none, and is a rejection.
    """
    folders, rejections = list_folder(path, MAX_ENTRIES, only_folders=True)
    parsed = _parsed_folders([folder.name for folder in folders])
    pods: dict[str, list[tuple[str, PodRef]]] = {}
    for folder in folders:
        if pod := parsed[folder.name]:
            pods.setdefault(pod.uid, []).append((folder.name, pod))
        else:
            detail = "not <namespace>_<pod>_<uid>"
            rejections += (Rejection(printable(folder.path), Reason.MALFORMED, detail),)
    named, ambiguous = _unambiguous(pods, path, "folders of pod UID")
    return named, rejections + ambiguous


def read_container_links(path: str) -> tuple[dict[str, ContainerName], tuple[Rejection, ...]]:
    """Container id -> names, of every log link below ``path``. Raises SourceError.

    Of a long name the id is only the beginning of the whole one. A container that would get two
    names gets none, and is a rejection. Other files there belong to whoever writes logs too, and
    are passed over.
    """
    entries, rejections = list_folder(path, MAX_ENTRIES)
    parsed = _parsed_links([entry.name for entry in entries])
    containers: dict[str, list[tuple[str, ContainerName]]] = {}
    for link, container in parsed.items():
        if container:
            container_id, name = container
            containers.setdefault(container_id, []).append((link, name))
    named, ambiguous = _unambiguous(containers, path, "links of container")
    return named, rejections + ambiguous


def _unambiguous(
    names_by_key: Mapping[str, Sequence[tuple[str, T]]], path: str, what: str
) -> tuple[dict[str, T], tuple[Rejection, ...]]:
    """The entries with one name; each other is a rejection that names its first two files."""
    named = {key: names[0][1] for key, names in names_by_key.items() if len(names) == 1}
    rejections = []
    for key in sorted(names_by_key.keys() - named.keys()):
        files = sorted(file for file, _ in names_by_key[key])
        more = ", …" if len(files) > 2 else ""
        detail = f"{len(files)} {what} {key}; another one is {files[1]}{more}"
        rejections.append(Rejection(printable(f"{path}/{files[0]}"), Reason.AMBIGUOUS, detail))
    return named, tuple(rejections)
