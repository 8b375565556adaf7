"""Makes bindings durable: first our own checkpoint, then the files of each container."""

import logging

from msgspec.structs import replace

from deviceplugin.allocate.binder_ports import BinderEventHandler
from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.allocate.binding import Round
from deviceplugin.allocate.checkpoint_writer import CheckpointWriter
from deviceplugin.allocate.context import AllocateContext
from deviceplugin.allocate.expected_answers import ExpectedAnswers
from deviceplugin.allocate.injection_writer import InjectionWriter
from deviceplugin.failpoints import Step
from deviceplugin.model import AdmittedPod, Binding, ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.units import exact_size, percentage

log = logging.getLogger(__name__)


class BindingWriter:
    """Used by the binder's thread alone."""

    def __init__(
        self,
        context: AllocateContext,
        checkpoint: CheckpointWriter,
        injection: InjectionWriter,
        expected: ExpectedAnswers,
        events: BinderEventHandler,
    ) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._injection = injection
        self._expected = expected
        self._events = events

    def carry_out(self, state: BinderState, decided: Round) -> BinderState:
        """The state after the bindings are written; a binding that cannot be written is refused."""
        refusals = dict(decided.refusals)
        allocation_state, bound = decided.allocation_state, decided.bound
        if allocation_state is not state.allocation_state:
            self._context.failpoint(Step.BINDING_DECIDED)
            try:
                self._checkpoint.save(allocation_state)
                self._context.failpoint(Step.CHECKPOINT_WRITTEN)
            except OSError as error:
                detail = f"our checkpoint cannot be written: {error}"
                for assignment, pod in bound:
                    key = assignment.pod_uid, assignment.container
                    refusals[key] = BindRefused(
                        BindRefusal.NOT_WRITTEN, detail, pod.ref, assignment.container
                    )
                allocation_state, bound = state.allocation_state, ()
        ready = set(state.ready)
        for assignment, pod in bound:
            if assignment.name in ready:
                continue  # an earlier process of the plugin has written its files
            try:
                binding = self._injection.write(allocation_state, assignment, pod)
            except BindRefused as error:
                refusals[assignment.pod_uid, assignment.container] = error
            else:
                self._report_bound(
                    allocation_state.tenants[assignment.pod_uid], binding, assignment
                )
                ready.add(assignment.name)
        for key, refused in refusals.items():
            self._report_refused(refused, state.refusals.get(key))
        return replace(
            state, allocation_state=allocation_state, refusals=refusals, ready=frozenset(ready)
        )

    def _report_bound(
        self, tenant: AdmittedPod, binding: Binding, assignment: ContainerDevices
    ) -> None:
        seconds = self._expected.seconds_since(binding.name)
        pod = tenant.pod
        fields = {
            "namespace": pod.namespace,
            "pod": pod.name,
            "uid": pod.uid,
            "container": binding.container,
            "shares": _shares(binding),
            "share": binding.name,
            "ids": len(assignment.ids),
            "seconds": seconds,
        }
        log.info("bound", extra=fields)
        self._events.bound(tenant, binding, seconds)

    def _report_refused(self, error: BindRefused, before: BindRefused | None) -> None:
        """Report a refusal once; none of an unknown pod, which only the kubelet remembers."""
        same = before is not None and (before.why, before.detail) == (error.why, error.detail)
        if error.pod is not None and not same:
            log.warning("not bound", extra={"reason": error.why.value, "detail": str(error)})
            self._events.refused(error)


def _shares(binding: Binding) -> str:
    """The container's shares, for the log."""
    return "; ".join(
        f"{share.device} {exact_size(share.memory_bytes or 0)},"
        f" {percentage(share.cores_milli or 0)} of cores"
        for share in binding.shares
    )
