"""The limit files of gpu-manager and KubeShare, each with its container. Pure.

A tenant can write gpu-manager's file, so a container that its pod does not have is an error, and
a limit that cannot be is unknown.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from vgpu.ledger.bounds import Bounds
from vgpu.ledger.statements import Malformed, Statement
from vgpu.model.allocation import Share
from vgpu.model.facts import ContainerName, LimitFile
from vgpu.model.names import PodRef, Source
from vgpu.model.reasons import Reason
from vgpu.model.units import MILLI_PER_PERCENT
from vgpu.schemes.kubeshare.gemini_config import client_name, split_name


class LimitReport(msgspec.Struct, frozen=True, gc=False):
    """A limit file with its container.

    Attributes:
        limit: the content of the file.
        device: the device by its name in the file.
        pod_uid: its pod; "" if several pods have the name in the file.
        container: its container; "" if only the pod is known.
        error: why the file limits no container, as text; "" if it limits one.
        reason: the reason code of ``error``.
        limit_error: why the memory limit cannot be, as text; "" if it can.
    """

    limit: LimitFile
    device: str
    pod_uid: str = ""
    container: str = ""
    error: str = ""
    reason: Reason | None = None
    limit_error: str = ""

    @property
    def statement(self) -> Statement | Malformed:
        """What the file states. Its cores are those requested: up to the limit a container may
        use free ones.
        """
        limit = self.limit
        pod = PodRef(self.pod_uid, limit.namespace, limit.pod) if self.pod_uid else None
        if pod is None or self.error:
            return Malformed(pod, self.container, limit.scheme, f"{limit.path}: {self.error}")
        asked = limit.cores_request_percent
        percent = limit.cores_percent if asked is None else asked
        cores = None if percent is None else percent * MILLI_PER_PERCENT
        memory = None if self.limit_error else limit.memory_bytes
        return Statement(
            source=Source.LIMIT_FILE,
            pod=pod,
            container=self.container,
            shares=(Share(self.device, memory, cores),),
            scheme=limit.scheme,
            where=limit.path,
        )


def limit_reports(
    limits: Iterable[LimitFile],
    pods: Iterable[PodRef],
    names: Mapping[str, ContainerName],
    bounds: Bounds,
) -> Iterator[LimitReport]:
    """The limit files whose pod is known.

    ``pods`` are those that a name may mean, ``names`` is by container id.
    """
    uids: dict[tuple[str, str], set[str]] = {}
    full_names: dict[tuple[str, str], tuple[str, str]] = {}  # by key
    for pod in pods:
        full_name = pod.namespace, pod.name
        full_names[split_name(client_name(*full_name))] = full_name
        uids.setdefault(full_name, set()).add(pod.uid)
    containers: dict[str, set[str]] = {}
    for container in names.values():
        containers.setdefault(container.pod_uid, set()).add(container.container)
    for read in limits:
        limit = read
        if not read.namespace and ("", read.pod) in full_names:
            namespace, pod_name = full_names["", read.pod]
            limit = msgspec.structs.replace(read, namespace=namespace, pod=pod_name)
        device = limit.device or bus_id(limit.pci_bus_id)
        candidates = {limit.pod_uid} - {""} or uids.get((limit.namespace, limit.pod), set())
        if len(candidates) > 1:
            error = f"{len(candidates)} pods {limit.namespace}/{limit.pod}"
            yield LimitReport(limit, device, error=error, reason=Reason.AMBIGUOUS)
        for uid in candidates if len(candidates) == 1 else ():
            own_names = containers.get(uid, set())
            named = names.get(limit.container_id)
            only = min(own_names) if len(own_names) == 1 else ""
            name = named.container if named else limit.container or only
            if name and own_names and name not in own_names:
                error = f"no container {name}"
                yield LimitReport(limit, device, uid, name, error, Reason.FORGED)
            else:
                error = bounds.limit_error(device, limit.memory_bytes)
                yield LimitReport(limit, device, uid, name, limit_error=error)


def bus_id(text: str) -> str:
    """A PCI bus id with a four-digit domain in lower case, as gpu-manager writes it; "" if none."""
    domain, colon, rest = text.strip().lower().partition(":")
    return domain[-4:].rjust(4, "0") + colon + rest if colon else ""
