"""Finds out who holds what before anything is served: reads all sources and makes one allocation
state of them.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.allocate.binder_state import Recovered
from deviceplugin.apiserver.pods import Pods
from deviceplugin.kubelet.container_devices import read_assignments
from deviceplugin.model import AdmittedPod, ContainerDevices
from deviceplugin.ports import Injector
from deviceplugin.recovery.node_probe import NodeProbe
from deviceplugin.recovery.recovered_state import RecoverySources, recover
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.allocation import Device
from vgpu.model.facts import Gpu, GpuSample
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.own_checkpoint import booted_at

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 1.0
"""Interval between two looks while a source may still answer, in seconds."""

PATIENCE_SECONDS: Final = 20.0
"""Maximum time to wait for the API server where no other source has allocations, in seconds.

Then the known pods are served, since their containers may have to start again. No new pod can be
served without the API server; before the first one, all sources are read once more."""


class CheckpointContent(msgspec.Struct, frozen=True):
    """The admitted pods of our checkpoint, and whether it was written since the node started."""

    admitted_pods: tuple[AdmittedPod, ...] = ()
    this_boot: bool = True

    def trusted(self, assignments: Iterable[ContainerDevices]) -> tuple[AdmittedPod, ...]:
        """The admitted pods that may be trusted.

        Of an older boot, these are the pods for which the kubelet still has an answer of ours, for
        the same container: names are random and used once, so it is the same admission. That
        admission decided the pod's shares; its annotations, which its owner can write, do not
        decide again. Its init containers run again.
        """
        if self.this_boot:
            return self.admitted_pods
        names = {
            (entry.pod_uid, entry.container, entry.name) for entry in assignments if entry.name
        }
        return tuple(
            replace(admitted_pod, initialized=False)
            for admitted_pod in self.admitted_pods
            if any(
                (admitted_pod.pod.uid, binding.container, binding.name) in names
                for binding in admitted_pod.bindings
            )
        )


class Recovery:
    """Reads all sources once, and again while that may bring more data."""

    def __init__(
        self,
        adapter: SchemeAdapter,
        probe: Callable[[], NodeProbe],
        pods: Pods,
        *,
        content: CheckpointContent,
        injector: Injector,
        checkpoint: str,
    ) -> None:
        """``probe`` makes a node probe; ``checkpoint`` is the path of the kubelet's."""
        self._adapter = adapter
        self._probe = probe
        self._pods = pods
        self._content = content
        self._injector = injector
        self._checkpoint = checkpoint

    def run(
        self, gpus: tuple[Gpu, ...], devices: tuple[Device, ...], known: Iterable[AdmittedPod]
    ) -> Recovered:
        """Who holds what, as far as the sources show it now.

        ``known`` are the admitted pods of an earlier try. Raises CapacityError if two GPUs have
        the same UUID.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        admitted_before = tuple(known)
        with closing(self._probe()) as probe:
            while True:
                pods = self._known()
                assignments = self._assignments()
                recovered = self._look(
                    probe,
                    pods,
                    assignments,
                    gpus=gpus,
                    devices=devices,
                    admitted_before=admitted_before,
                )
                enough = pods is not None or not recovered.unsettled
                if (enough and assignments is not None) or time.monotonic() > until:
                    break
                time.sleep(AGAIN_SECONDS)
        admitted_pods = recovered.allocation_state.admitted_pods
        foreign = sum(admitted_pod.foreign for admitted_pod in admitted_pods.values())
        counted = {"pods": len(admitted_pods), "foreign": foreign}
        open_ = {"conflicts": len(recovered.conflicts), "unsettled": len(recovered.unsettled)}
        log.info("allocation state recovered", extra={**counted, **open_})
        return recovered

    def _known(self) -> tuple[Pod, ...] | None:
        pods = self._pods.known()
        return None if pods is None else tuple(pods.values())

    def _look(
        self,
        probe: NodeProbe,
        pods: tuple[Pod, ...] | None,
        assignments: tuple[ContainerDevices, ...] | None,
        *,
        gpus: tuple[Gpu, ...],
        devices: tuple[Device, ...],
        admitted_before: tuple[AdmittedPod, ...],
    ) -> Recovered:
        now = time.time()
        own = admitted_before or self._content.trusted(assignments or ())
        snapshot = probe.probe(GpuSample(gpus), devices, own, pods, now)
        for failure in snapshot.failures:
            log.warning("recovery continues without a source", extra={"err": failure})
        written = self._injector.written()
        sources = RecoverySources(
            snapshot.ledger, assignments, pods, snapshot.live_pods, written, booted_at()
        )
        return recover(self._adapter.codec, devices, own, sources, now)

    def _assignments(self) -> tuple[ContainerDevices, ...] | None:
        try:
            return read_assignments(self._checkpoint, self._adapter.resources[0])
        except SourceError as error:
            # A kubelet that has allocated nothing yet has no file.
            return () if error.reason is Reason.ABSENT else None
