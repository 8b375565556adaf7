"""Writes the annotations of the node's pods."""

import logging

from msgspec.structs import replace

from deviceplugin.apiserver import desired_state
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.write_context import WriteContext
from deviceplugin.apiserver.writes import DroppedError, WriteKey, WriteTarget, as_text
from deviceplugin.failpoints import Step
from deviceplugin.model import AdmittedPod

log = logging.getLogger(__name__)

_Inputs = tuple[str, AdmittedPod | None, bool]
"""All that the annotations of a pod depend on."""


class PodWriter:
    """Used by the status manager's thread alone."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context
        self._up_to_date: dict[str, _Inputs] = {}  # inputs of pods that needed no write

    def pending(self, desired: DesiredState) -> list[str]:
        """UIDs of the pods that may have to be written."""
        self._up_to_date = {
            uid: inputs for uid, inputs in self._up_to_date.items() if uid in desired.pods
        }
        return [
            uid
            for uid in desired.pods
            if (uid in desired.tenants or uid in desired.refused)
            and self._up_to_date.get(uid) != _inputs(desired, uid)
        ]

    def write(self, desired: DesiredState, uid: str) -> bool:
        """Write a pod's annotations; returns whether there were any to write.

        Raises ClusterError, SourceError, DroppedError.
        """
        context, pod = self._context, desired.pods[uid]
        patch = desired_state.of_pod(context.adapter, desired, uid, context.clock())
        if not patch:
            self._up_to_date[uid] = _inputs(desired, uid)
            return False
        written = context.cluster.patch_pod(pod.ref, pod.resource_version, patch)
        context.own_writes.add(WriteKey(WriteTarget.POD, uid), pod, written)
        after = replace(desired, pods={uid: written})
        if lost := desired_state.of_pod(context.adapter, after, uid, context.clock()):
            raise DroppedError(", ".join(lost))
        fields = {"namespace": pod.ref.namespace, "pod": pod.ref.name, "uid": uid}
        log.info("pod updated", extra={**fields, "annotations": as_text(patch)})
        context.failpoint(Step.POD_ANNOTATED)
        return True


def _inputs(desired: DesiredState, uid: str) -> _Inputs:
    return desired.pods[uid].resource_version, desired.tenants.get(uid), uid in desired.refused
