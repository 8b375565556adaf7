"""The two loops of the controllers: one places SharePods, the other does everything after that.

Each loop takes keys from a work queue, decides the next write with the pure functions, and sends
it. Only the leader writes. All state is in the objects of the API server: a new leader goes on
where the last one stopped.
"""

import logging
import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from kubeshare.bodies import HolderOptions
from kubeshare.labelled_pods import labelled_step
from kubeshare.malformed_objects import MalformedObjects
from kubeshare.metrics import ControllerMetrics, StepOutcome
from kubeshare.model import ClusterNode, ClusterPod, SharePod, VirtualGpuName
from kubeshare.place_choice import Unplaced, choose_place, new_gpuid, place_name
from kubeshare.placement import KubeShareAlgorithm
from kubeshare.reasons import SharePodReason
from kubeshare.share_pod_cluster import Affected, SharePodCluster, held_gpu
from kubeshare.step_writer import ControllerApi, StepWriter
from kubeshare.steps import (
    BindPod,
    CreateHolder,
    CreateSharePodPod,
    DeletePod,
    PatchSharePod,
    Step,
    holder_step,
    placed_patch,
    refused_patch,
    tenant_step,
)
from kubeshare.virtual_gpu import IdlePool
from vgpu.apiserver.backoff import ItemBackoff
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.apiserver.work_queue import WorkQueue
from vgpu.model.objects import NODE_KIND, POD_KIND, SHARE_POD_KIND, MalformedObject
from vgpu.model.reasons import SourceError

log = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 15.0
"""Interval between two complete rounds, for what only time changes, in seconds."""

TICK_SECONDS: Final = 0.5
"""Interval between two looks at the leader election, in seconds."""

GATHER_SECONDS: Final = 0.1
"""Time for which changes gather before waiting SharePods are tried again, in seconds."""

MOST_STEPS: Final = 10
"""Maximum number of writes for one key in a row; the rest follows with the events."""

DRAIN_SECONDS: Final = 1.0
"""Maximum time to wait at the end for writes that are under way, in seconds."""

_CERTAIN: Final = range(400, 500)
"""Statuses with which the API server certainly has not written anything."""

_REFUSED: Final = {403, 422}
"""Statuses with which the API server or an admission policy refuses a pod."""

_DENIED: Final = "denied request: "
"""What stands before the message of an admission policy, behind the names of policy and binding."""

_FAILED: Final = {SharePodReason.HOLDER_FAILED, SharePodReason.POD_FAILED}
"""Reasons to delete a pod after which the next one is created later each time."""

Key = str | VirtualGpuName
"""The key of a SharePod, or the name of a virtual GPU."""


class ControllerOptions(msgspec.Struct, frozen=True):
    """How the controllers work.

    Attributes:
        algorithm: the placement.
        holder: what holder pods run as.
        keep_idle: number of idle virtual GPUs that each node keeps.
        idle_seconds: maximum time for which one is kept, in seconds; 0 is no limit.
        labelled_pods: whether pods with KubeShare 2's labels are placed, too.
    """

    algorithm: KubeShareAlgorithm
    holder: HolderOptions
    keep_idle: int = 0
    idle_seconds: float = 0.0
    labelled_pods: bool = False


class SharePodControllers:
    """The loops, from :meth:`start` to :meth:`stop`. Any thread may call the other methods."""

    def __init__(
        self,
        api: ControllerApi,
        options: ControllerOptions,
        leads: Callable[[], bool],
        metrics: ControllerMetrics,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``leads`` returns whether this process may write at this moment."""
        self._options = options
        self._leads = leads
        self._metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._cluster = SharePodCluster()
        self._malformed = MalformedObjects()
        self._failed = ItemBackoff(random.random)
        self._refusals: dict[str, str] = {}  # of pods of SharePods, by their keys
        self._uncertain: set[str] = set()
        self._idle = IdlePool(options.keep_idle, options.idle_seconds)
        self._placing, self._syncing = WorkQueue[Key](), WorkQueue[Key]()
        self._writer = StepWriter(api, options.holder, clock)
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=target, args=args, name=name, daemon=True)
            for name, target, args in (
                ("placement", self._work, (self._placing, self._place)),
                ("sync", self._work, (self._syncing, self._sync)),
                ("resync", self._tick, ()),
            )
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin no further write, and wait for those under way."""
        self._ending.set()
        self._placing.shut_down()
        self._syncing.shut_down()
        for queue in (self._placing, self._syncing):
            queue.wait_drained(DRAIN_SECONDS)
        self._writer.finish()

    # ------------------------------------------------------------ from the informers

    def set_share_pod(self, key: str, found: SharePod | MalformedObject | None) -> None:
        """A SharePod has changed; None if it is gone."""
        self._note_object(SHARE_POD_KIND, key, found)
        with self._lock:
            affected = self._cluster.set_share_pod(key, found)
        self._enqueue(affected)
        if isinstance(found, SharePod) and found.needs_place:
            self._placing.add(key)

    def set_pod(self, key: str, found: ClusterPod | MalformedObject | None) -> None:
        """A pod has changed; None if it is gone."""
        self._note_object(POD_KIND, key, found)
        pod = self._taken(found) if isinstance(found, ClusterPod) else None
        with self._lock:
            before = self._cluster.pods.get(key)
            affected = self._cluster.set_pod(key, pod)
        if pod is not None and before is not None:
            self._note_holder_start(before, pod)
        self._enqueue(affected)
        if pod is not None and pod.labelled is not None and pod.labelled.needs_place:
            self._placing.add(pod.labelled.key)

    def _taken(self, pod: ClusterPod) -> ClusterPod:
        """The pod; without the labels of KubeShare 2, if another program cares for these."""
        if self._options.labelled_pods or pod.labelled is None:
            return pod
        return msgspec.structs.replace(pod, labelled=None)

    def _note_holder_start(self, before: ClusterPod, pod: ClusterPod) -> None:
        is_start = before.ref.uid == pod.ref.uid and pod.uuid and not before.uuid
        if is_start and held_gpu(pod) is not None and pod.pod.created_at is not None:
            self._metrics.note_holder_start(max(0.0, self._clock() - pod.pod.created_at))

    def set_node(self, name: str, found: ClusterNode | MalformedObject | None) -> None:
        """A node has changed; None if it is gone."""
        self._note_object(NODE_KIND, name, found)
        node = found if isinstance(found, ClusterNode) else None
        with self._lock:
            affected = self._cluster.set_node(name, node)
        self._enqueue(affected)

    def _note_object(self, kind: str, key: str, found: object) -> None:
        with self._lock:
            self._malformed.set(kind, key, found)
        if isinstance(found, MalformedObject):
            self._report_malformed()

    def _report_malformed(self) -> None:
        """Report what cannot be read, if this process leads; else the leader does."""
        if self._leads():
            with self._lock:
                taken = self._malformed.take()
            self._writer.report_malformed(taken)

    def _enqueue(self, affected: Affected) -> None:
        keys: tuple[Key, ...] = (*affected.keys, *affected.gpus)
        for key in keys:
            self._syncing.add(key)
        if affected.frees:
            with self._lock:
                waiting = self._cluster.waiting
            for share_pod in waiting:
                self._placing.add_after(share_pod, GATHER_SECONDS)

    # ------------------------------------------------------------ for pages

    def view(self) -> Mapping[str, Any]:
        """What the pages of metrics show of the cluster."""
        with self._lock:
            return {
                "share_pods": tuple(self._cluster.share_pods.values()),
                "gpus": tuple(self._cluster.virtual_gpus()),
                "nodes": tuple(self._cluster.nodes.values()),
                "malformed": self._malformed.counts(),
            }

    # ------------------------------------------------------------ the threads' side

    def _tick(self) -> None:
        """Enqueue everything when we begin to lead, and from time to time."""
        due = float("-inf")
        led = False
        while not self._ending.wait(TICK_SECONDS):
            leads = self._leads()
            if leads and (not led or self._monotonic() >= due):
                try:
                    self._enqueue_all()
                except Exception:  # the next tick tries again
                    log.exception("unexpected error: not all objects are queued")
                    continue
                due = self._monotonic() + RESYNC_SECONDS
            led = leads

    def _enqueue_all(self) -> None:
        self._report_malformed()
        with self._lock:
            keys: list[Key] = [*self._cluster.share_pods]
            keys += [gpu.name for gpu in self._cluster.virtual_gpus()]
            waiting = self._cluster.waiting
        for key in keys:
            self._syncing.add(key)
        for key in waiting:
            self._placing.add(key)

    def _work(self, queue: WorkQueue[Key], handle: Callable[[Any], None]) -> None:
        while (key := queue.get()) is not None:
            try:
                if self._leads():
                    self._read_again(key)
                    handle(key)
            except (ClusterError, SourceError) as error:
                self._note_failure(key, error)
                queue.add_rate_limited(key)
            except Exception:
                log.exception("unexpected error in a step", extra={"object": _text(key)})
                queue.add_rate_limited(key)
            else:
                queue.forget(key)
            finally:
                queue.done(key)

    def _note_failure(self, key: Key, error: ClusterError | SourceError) -> None:
        is_late = isinstance(error, ClusterError) and error.status in {CONFLICT, NOT_FOUND}
        if isinstance(key, str) and not (
            isinstance(error, ClusterError) and error.status in _CERTAIN and not is_late
        ):
            with self._lock:
                self._uncertain.add(key)
        level = logging.DEBUG if is_late else logging.WARNING
        log.log(level, "a step failed", extra={"object": _text(key), "reason": str(error)})

    def _read_again(self, key: Key) -> None:
        """Read a SharePod whose last write may or may not have arrived."""
        if not isinstance(key, str) or key not in self._uncertain:
            return
        found = self._writer.read(key)
        with self._lock:
            self._uncertain.discard(key)
            affected = self._cluster.set_object(key, found)
        self._enqueue(affected)

    def _place(self, key: str) -> None:
        begun = self._monotonic()
        with self._lock:
            share_pod = self._cluster.share_pods.get(key)
            if share_pod is None or not share_pod.needs_place:
                return
            step = self._placement(share_pod)
            if step is not None and _placed(step):
                self._cluster.assume_place(step.after)
        if step is None:
            return
        try:
            is_sent = self._send(key, step)
        except ClusterError as error:
            if error.status in _CERTAIN:  # else it may still arrive: the room stays taken
                with self._lock:
                    self._cluster.forget_assumed(share_pod)
            raise
        if not is_sent:
            with self._lock:
                self._cluster.forget_assumed(share_pod)
        elif _placed(step):
            self._metrics.note_placement(self._monotonic() - begun)

    def _placement(self, share_pod: SharePod) -> PatchSharePod | None:
        if share_pod.gpuid and not share_pod.node:
            reason = SharePodReason.GPUID_WITHOUT_NODE
            return refused_patch(share_pod, reason, reason.explanation)
        nodes = self._cluster.placement_nodes()
        lost = self._cluster.lost_gpus()
        choice = choose_place(share_pod, nodes, self._options.algorithm, lost)
        if isinstance(choice, Unplaced):
            self._metrics.note_unplaced(share_pod.ref.uid, choice.cause)
            return refused_patch(share_pod, SharePodReason.UNSCHEDULABLE, choice.text)
        self._metrics.note_placed(share_pod.ref.uid)
        gpuid = new_gpuid(self._cluster.is_used_gpuid, secrets.choice)
        return placed_patch(share_pod, place_name(choice, gpuid))

    def _sync(self, key: Key) -> None:
        for _ in range(MOST_STEPS):
            with self._lock:
                step = self._tenant(key) if isinstance(key, str) else self._holder(key)
            if step is None or not self._send(key, step):
                return

    def _tenant(self, key: str) -> Step | None:
        until = self._failed.until(key)
        now = self._monotonic()
        if until > now:
            self._syncing.add_after(key, until - now)
        refusal = self._refusals.get(key, "")
        view = self._cluster.tenant_view(
            key, self._clock(), may_create=until <= now, refusal=refusal
        )
        if view is None:
            self._failed.forget(key)
            self._refusals.pop(key, None)
            return None
        if view.own_pod is not None and view.own_pod.is_ready:
            self._failed.forget(key)
        return labelled_step(view) if view.share_pod.is_pod else tenant_step(view)

    def _holder(self, name: VirtualGpuName) -> Step | None:
        until = self._failed.until(name)
        now = self._monotonic()
        if until > now:
            self._syncing.add_after(name, until - now)
        gpu = self._cluster.virtual_gpu(name)
        if gpu.uuid or not (gpu.holder or gpu.users):
            self._failed.forget(name)
        idle = self._idle.seconds_left(name, self._cluster.idle_gpus(name.node), now)
        if 0 < idle < math.inf:
            self._syncing.add_after(name, idle)
        step = holder_step(
            gpu,
            node_exists=name.node in self._cluster.nodes,
            may_create=until <= now,
            is_kept=idle > 0,
        )
        if isinstance(step, DeletePod):
            self._cluster.closing.add(name)
        return step

    # ------------------------------------------------------------ writes

    def _send(self, key: Key, step: Step) -> bool:
        """Send a step; returns whether the next one can be decided at once."""
        if not self._leads() or self._writer.is_futile(step):
            return False
        with self._lock:
            self._prepare(key, step)
        outcome = StepOutcome.ERROR
        try:
            answer = self._writer.write(step)
            outcome = StepOutcome.SUCCESS
            if isinstance(step, CreateSharePodPod):
                with self._lock:
                    self._refusals.pop(step.share_pod.key, None)
        except ClusterError as error:
            outcome = StepOutcome.CONFLICT if error.status == CONFLICT else outcome
            if isinstance(step, CreateSharePodPod) and error.status in _REFUSED:
                with self._lock:
                    why = error.message.rpartition(_DENIED)[2]
                    self._refusals[step.share_pod.key] = why
            if isinstance(step, DeletePod) and not isinstance(key, str):
                with self._lock:
                    self._cluster.closing.discard(key)
            raise
        finally:
            self._metrics.note_step(type(step).__name__, outcome)
        if answer is not None:
            with self._lock:
                affected = self._cluster.assume(answer)
            self._enqueue(affected)
        return isinstance(step, PatchSharePod | CreateSharePodPod | CreateHolder)

    def _prepare(self, key: Key, step: Step) -> None:
        """Note what has to be known even if the answer to a write is lost."""
        match step:
            case PatchSharePod() | BindPod():
                self._cluster.use_port(step.after)
            case DeletePod() if step.reason in _FAILED:
                self._failed.add(key, self._monotonic())


def _placed(step: PatchSharePod) -> bool:
    """Whether a write gives a SharePod its place."""
    before, after = step.before, step.after
    return (before.node, before.gpuid) != (after.node, after.gpuid)


def _text(key: Key) -> str:
    return key if isinstance(key, str) else "/".join(key)
