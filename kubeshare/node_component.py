"""The node component: it reports a node's GPUs and those of its holder pods, and writes files.

Upstream's device manager reads a GPU's UUID from the log of a holder pod, and its config daemon
gets the files' content over a connection. Here the UUID is from the kubelet's checkpoint, which the
kubelet itself trusts, and the files' content from the SharePods.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from kubeshare.decoders import CLUSTER_PODS, SHARE_POD_OBJECTS
from kubeshare.metrics import StepOutcome
from kubeshare.model import ClusterPod, SharePod
from kubeshare.node_files import GeminiFolder, tables_of, with_unread, write_address
from kubeshare.share_pod_cluster import held_gpu
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.apiserver.informer import Informer, InformerState
from vgpu.apiserver.list_watch import ListWatch
from vgpu.apiserver.reader import Reader
from vgpu.model.allocation import Device
from vgpu.model.facts import Grant
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Node
from vgpu.model.reasons import SourceError
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare.codec import GPU_RESOURCE, KubeShare
from vgpu.schemes.kubeshare.node import GPU_INFO, HOLDER_NAMESPACE, HOLDER_UUID, format_gpu_info
from vgpu.sources.files import read_file
from vgpu.sources.kubelet_checkpoint import CHECKPOINT_LIMIT, parse_checkpoint

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 1.0
"""Maximum time between two rounds, in seconds: no event reports the kubelet's checkpoint."""


class NodeApi(Protocol):
    """The API server. All methods raise ClusterError and SourceError."""

    def node(self, name: str) -> Node:
        """One node."""
        ...

    def patch_pod(
        self, pod: PodRef, resource_version: str, annotations: Mapping[str, str | None]
    ) -> object:
        """Set annotations of a pod."""
        ...

    def patch_node(
        self, name: str, resource_version: str, annotations: Mapping[str, str | None]
    ) -> object:
        """Set annotations of a node."""
        ...


class NodeOptions(msgspec.Struct, frozen=True):
    """Where things are on the node.

    Attributes:
        node: the node's name.
        checkpoint: the kubelet's checkpoint of its devices.
        folder: the folder of KubeShare's scheduler.
        library: the folder of Gemini's library; "" to write no address there.
        address: the address of the node's pod managers.
        labelled_pods: whether the files have pods with KubeShare 2's labels, too.
    """

    node: str
    checkpoint: str
    folder: str
    library: str
    address: str
    labelled_pods: bool = False


def held_uuid(grants: Iterable[Grant], pod_uid: str) -> str:
    """The GPU that the kubelet allocated to a holder pod; "" unless it is exactly one."""
    codec = KubeShare()
    uuids: set[str] = set()
    for grant in grants:
        if grant.pod_uid != pod_uid or grant.resource != GPU_RESOURCE:
            continue
        for device_id in grant.device_ids:
            try:
                uuids.add(codec.slot(grant.resource, device_id).device or "")
            except ClaimError:
                return ""
    return uuids.pop() if len(uuids) == 1 else ""


class NodeComponent:
    """Rounds on a thread of its own, from :meth:`start` to :meth:`stop`.

    A part of a round that fails is tried again in the next one.
    """

    def __init__(
        self,
        server: Reader,
        api: NodeApi,
        options: NodeOptions,
        gpus: Callable[[], Iterable[Device]],
    ) -> None:
        """``gpus`` reads the GPUs from the driver, and may raise SourceError."""
        self._api = api
        self._options = options
        self._gpus = gpus
        self._folder = GeminiFolder(Path(options.folder))
        self._changed = threading.Event()
        self._ending = False
        self._failures: dict[str, str] = {}
        self._reported = False
        self._checkpoint: tuple[bytes, tuple[Grant, ...]] = (b"", ())
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, StepOutcome]] = Counter()
        self._holders = Informer[ClusterPod](
            ListWatch(
                server,
                CLUSTER_PODS,
                namespace=HOLDER_NAMESPACE,
                field_selector=f"spec.nodeName={options.node}",
            ),
            "holder pods",
            key=lambda pod: pod.ref.name,
            keep=lambda pod: held_gpu(pod) is not None,
            changed=self._changed.set,
        )
        self._share_pods = Informer[SharePod](
            ListWatch(server, SHARE_POD_OBJECTS),
            "sharepods",
            key=lambda each: f"{each.ref.namespace}/{each.ref.name}",
            changed=self._changed.set,
        )
        self._labelled = Informer[ClusterPod](
            ListWatch(server, CLUSTER_PODS, field_selector=f"spec.nodeName={options.node}"),
            "pods with labels",
            key=lambda pod: f"{pod.ref.namespace}/{pod.ref.name}",
            keep=lambda pod: pod.labelled is not None,
            changed=self._changed.set,
        )
        self._informers: list[Informer[Any]] = [self._holders, self._share_pods]
        if options.labelled_pods:
            self._informers.append(self._labelled)
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)

    def start(self) -> None:
        """Begin."""
        for informer in self._informers:
            informer.start()
        self._thread.start()

    def stop(self) -> None:
        """End, after the round that is under way."""
        self._ending = True
        self._changed.set()
        self._thread.join(ROUND_SECONDS * 5)
        for informer in self._informers:
            informer.close()

    def complaint(self) -> str:
        """Why the node's files or reports may be old; "" if they are not."""
        for informer in self._informers:
            state = informer.state()
            if not state.synced:
                return str(state.failure or "the cluster has not been read completely yet")
        return next(iter(self._failures.values()), "")

    def counts(self) -> Mapping[tuple[str, StepOutcome], int]:
        """Number of parts of rounds, by part and outcome."""
        with self._lock:
            return dict(self._counts)

    # ------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        while not self._ending:
            self._changed.wait(ROUND_SECONDS)
            self._changed.clear()
            if not self._ending:
                self.round()

    def round(self) -> None:
        """Do all that is due; a part that fails does not keep the others from their work."""
        for name, part in (
            ("address", self._write_address),
            ("gpus", self._report_gpus),
            ("holders", self._report_holders),
            ("files", self._write_files),
        ):
            outcome = StepOutcome.ERROR
            try:
                part()
                outcome = StepOutcome.SUCCESS
                self._failures.pop(name, None)
            except (ClusterError, SourceError, OSError) as error:
                if self._failures.get(name) != str(error):
                    extra = {"part": name, "node": self._options.node, "reason": str(error)}
                    log.warning("a part of a round failed", extra=extra)
                self._failures[name] = str(error)
            except Exception:
                log.exception("unexpected error in a round", extra={"part": name})
                self._failures[name] = "unexpected error; the log has the details"
            with self._lock:
                self._counts[name, outcome] += 1

    def _write_address(self) -> None:
        if self._options.library and self._options.address:
            write_address(Path(self._options.library), self._options.address)

    def _report_gpus(self) -> None:
        """Write the node's GPUs with their memory; once, since a GPU changes only with a boot."""
        if self._reported:
            return
        name = self._options.node
        text = format_gpu_info(self._gpus(), f"node {name}")
        node = self._api.node(name)
        if text and node.annotations.get(GPU_INFO) != text:
            self._api.patch_node(name, node.resource_version, {GPU_INFO: text})
            log.info("node annotated", extra={"node": name, "annotation": GPU_INFO, "value": text})
        self._reported = bool(text)

    def _report_holders(self) -> None:
        holders = self._holders.state().objects.values()
        living = [holder for holder in holders if not holder.pod.terminal]
        if not living:
            return
        content = read_file(self._options.checkpoint, CHECKPOINT_LIMIT)
        if content != self._checkpoint[0]:  # verifying it is a loop over every byte
            self._checkpoint = content, parse_checkpoint(content)[0]
        grants = self._checkpoint[1]
        for holder in living:
            uuid = held_uuid(grants, holder.ref.uid)
            if uuid and uuid != holder.uuid:
                self._report(holder, uuid)

    def _report(self, holder: ClusterPod, uuid: str) -> None:
        try:
            self._api.patch_pod(holder.ref, holder.pod.resource_version, {HOLDER_UUID: uuid})
        except ClusterError as error:
            if error.status not in {CONFLICT, NOT_FOUND}:  # an event of the pod is on its way
                raise
        else:
            name = f"{holder.ref.namespace}/{holder.ref.name}"
            extra = {"pod": name, "node": self._options.node, "annotation": HOLDER_UUID}
            log.info("holder pod annotated", extra=extra | {"gpu": uuid})

    def _write_files(self) -> None:
        """Write the files, as soon as all SharePods were read once: never an empty one before."""
        states: list[InformerState[Any]] = [self._share_pods.state()]
        if self._options.labelled_pods:
            states.append(self._labelled.state())
        if any(state.silent is None for state in states):
            return
        labelled = (pod.labelled for pod in self._labelled.state().objects.values())
        share_pods = [*self._share_pods.state().objects.values(), *filter(None, labelled)]
        wanted = tables_of(share_pods, self._options.node)
        unread = {
            (each.ref.namespace, each.ref.name)
            for state in states
            for each in state.malformed
            if isinstance(each, MalformedObject) and each.may_be_on(self._options.node)
        }
        self._folder.write(with_unread(wanted, self._folder.tables(), unread))
