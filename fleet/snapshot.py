"""The answers of the commands to the objects of one moment: what every view is rendered from.

    snapshot(objects) = { inspect, inspect --by, plan, doctor }(objects)

The documents are those of ``-o json``. So a number of the page is the number of the command that
owns it. Only ``explain`` answers later, for one object at a time, from the same objects.
"""

import shlex
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import click
import msgspec

from fleet.history import History
from fleet.measured import MeasuredSource
from fleet.nvidia import other_nodes
from fleet.read import FleetObjects
from fleet.repairs import Repairs
from reconciler.report.document import PlanDocument, plan_document
from vgpu.inventory import Inventory, Units, inventory
from vgpu.model.objects import Pod
from vgpu.placement.dialects import PlacementPolicies
from vgpu.schemes.registry import UnitBytes
from vgpucli.doctor.answer import cluster_findings
from vgpucli.doctor.model import diagnosis
from vgpucli.doctor.report import DiagnosisDocument
from vgpucli.doctor.report import document as diagnosis_document
from vgpucli.explain.document import ExplanationDocument
from vgpucli.explain.document import document as explanation_document
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import Explanation
from vgpucli.explain.node import explain_gpu, explain_node, explain_unreadable_node, gpu_entry
from vgpucli.explain.pod import explain_pod, explain_unreadable_pod, with_use
from vgpucli.explain.queue_step import explain_workload
from vgpucli.fit.command import schemes_in_units
from vgpucli.fit.document import FitDocument, fit_document
from vgpucli.fit.manifest import pod_of_requests
from vgpucli.fit.question import FitQuestion, answered
from vgpucli.fit.table import tolerations_note
from vgpucli.inspect.document import InventoryDocument, NodeDocument
from vgpucli.inspect.document import document as inventory_document
from vgpucli.inspect.groups import GroupsDocument, groups_document, groups_of, team_of
from vgpucli.inspect.queue_document import QueuesDocument
from vgpucli.inspect.queues import queues_document, queues_view
from vgpucli.measured_use import Measured

GROUPS: Final = ("namespace", "team")
"""The groups of ``vgpu inspect --by`` that the page shows, beside the queues."""

MOST_ANSWERS: Final = 1_000
"""Maximum number of explanations that are kept of one snapshot."""


class FleetSnapshot(msgspec.Struct, frozen=True):
    """The answers of one moment.

    Attributes:
        name: the cluster or the files, for people.
        as_of: unix seconds of the read.
        is_dump: whether files were read, which do not change.
        notes: what is missing, as sentences.
        inventory: the values behind ``inspect``.
        inspect: ``vgpu inspect -o json``.
        groups: ``vgpu inspect --by``, by the group.
        queues: ``vgpu inspect --by queue -o json``.
        plan: ``vgpu reconcile plan -o json``.
        diagnosis: ``vgpu doctor -o json``.
        marks: the teams, as :class:`vgpucli.inspect.read.Read` has them.
        answers: explains one object.
        measured: what pods use, None if nobody was asked.
        history: asks for what they used before, None without a Prometheus.
        repairs: what the reconciler did lately, None of a dump.
        nvidia_nodes: nodes of NVIDIA's own plugin without shared GPUs, as in ``inspect``.
        flags: what commands to copy need to read the same cluster or files in the same units.
    """

    name: str
    as_of: float
    is_dump: bool
    notes: tuple[str, ...]
    inventory: Inventory
    inspect: InventoryDocument
    groups: Mapping[str, GroupsDocument]
    queues: QueuesDocument
    plan: PlanDocument
    diagnosis: DiagnosisDocument
    marks: Mapping[str, str]
    answers: "Answers"
    measured: Measured | None = None
    history: History | None = None
    repairs: Repairs | None = None
    nvidia_nodes: tuple[NodeDocument, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[NodeDocument, ...]:
        """All nodes with GPUs."""
        return (*self.inspect.nodes, *self.nvidia_nodes)

    def command(self, words: Iterable[str]) -> str:
        """A command to copy, which reads what the page has read."""
        return shlex.join(["vgpu", *words, *self.flags])

    @property
    def source(self) -> MeasuredSource | None:
        """Who measured, None if nobody was asked."""
        measured = self.measured
        if measured is None:
            return None
        return MeasuredSource(measured.server, measured.exporters, measured.answered)

    def team(self, pod: Pod) -> str:
        """The team of a pod, "" if it has none."""
        return team_of(pod.ref, self.marks)


class Answers:
    """Explanations of single objects, as ``vgpu explain -o json``; each is made once.

    Requests come on many threads, and one at a time is answered.
    """

    def __init__(
        self, objects: FleetObjects, units: Units, measured: Measured | None = None
    ) -> None:
        self._read, self._units = objects.read, units
        self._measured = measured
        self._evidence = ClusterEvidence(objects.explained, units)
        self._lock = threading.Lock()
        self._made: dict[tuple[str, ...], ExplanationDocument | None] = {}
        self._failed: set[tuple[str, str]] = set()

    def pod(self, namespace: str, name: str) -> ExplanationDocument | None:
        """Of a pod; None if there is none."""
        return self._answer(("pod", namespace, name), partial(self._pod, namespace, name))

    def node(self, name: str) -> ExplanationDocument | None:
        """Of a node; None if there is none."""
        return self._answer(("node", name), partial(self._node, name))

    def gpu(self, node: str, gpu: str) -> ExplanationDocument | None:
        """Of a GPU by its index or UUID; None if there is none."""
        return self._answer(("gpu", node, gpu), partial(self._gpu, node, gpu))

    def workload(self, namespace: str, name: str) -> ExplanationDocument | None:
        """Of a workload of a queue; None if there is none."""
        return self._answer(("workload", namespace, name), partial(self._workload, namespace, name))

    @property
    def unit_bytes(self) -> UnitBytes:
        """Bytes of one unit of memory, by system."""
        return self._evidence.schemes.unit_bytes

    def fit(self, requests: Mapping[str, int]) -> tuple[FitDocument | None, str]:
        """``vgpu fit --request``, or why there is no answer. Not kept: it is asked seldom."""
        question = FitQuestion(pod_of_requests(requests, "default"))
        with self._lock:
            schemes, notes = schemes_in_units(self._read, self._units, PlacementPolicies())
            try:
                found, requested = answered(self._read, schemes, question)
            except click.ClickException as error:
                return None, error.message
        notes = (*self._read.notes, *notes, *tolerations_note(found))
        return fit_document(found, requested, None, self._read.as_of, notes), ""

    def fail(self, namespace: str, name: str) -> None:
        """Remember that an unexpected error has ended the explanation of a pod."""
        self._failed.add((namespace, name))

    def has_failed(self, namespace: str, name: str) -> bool:
        """Whether an unexpected error has ended the explanation of a pod."""
        return (namespace, name) in self._failed

    def known_pod(self, namespace: str, name: str) -> ExplanationDocument | None:
        """The explanation of a pod if it was made before; never waits for another one."""
        return self._made.get(("pod", namespace, name))

    def _answer(
        self, key: tuple[str, ...], explain: "partial[Explanation | None]"
    ) -> ExplanationDocument | None:
        with self._lock:
            if key not in self._made:
                if len(self._made) >= MOST_ANSWERS:
                    self._made.clear()
                explanation = explain()
                self._made[key] = None if explanation is None else self._document(explanation)
            return self._made[key]

    def _document(self, explanation: Explanation) -> ExplanationDocument:
        evidence = self._evidence
        cluster = evidence.read
        notes = (*cluster.notes, *evidence.schemes.notes, *cluster.kueue.notes)
        return explanation_document(msgspec.structs.replace(explanation, notes=notes))

    def _pod(self, namespace: str, name: str) -> Explanation | None:
        pod = self._evidence.pod(namespace, name)
        if pod is not None:
            explained = explain_pod(self._evidence.of_pod(pod))
            if self._measured is None:
                return explained
            return with_use(explained, self._measured.pods.get(pod.kubelet_uid))
        malformed = self._evidence.malformed_pod(namespace, name)
        if malformed is None:
            return None
        return explain_unreadable_pod(malformed, self._evidence.now)

    def _node(self, name: str) -> Explanation | None:
        node = self._evidence.node(name)
        if node is not None:
            return explain_node(self._evidence.of_node(node))
        malformed = self._evidence.malformed_node(name)
        if malformed is None:
            return None
        return explain_unreadable_node(malformed, self._evidence.now)

    def _gpu(self, node_name: str, gpu: str) -> Explanation | None:
        node = self._evidence.node(node_name)
        if node is None:
            return None
        of_node = self._evidence.of_node(node)
        entry = gpu_entry(of_node, gpu)
        return None if entry is None else explain_gpu(of_node, entry)

    def _workload(self, namespace: str, name: str) -> Explanation | None:
        workload = self._evidence.workload(namespace, name)
        if workload is None:
            return None
        answer = self._evidence.queue_answer(workload)
        shown = f"{workload.namespace}/{workload.name}"
        return explain_workload(shown, answer, self._evidence.now)


def snapshot(
    objects: FleetObjects,
    units: Units,
    measured: Measured | None = None,
    history: History | None = None,
    flags: tuple[str, ...] = (),
) -> FleetSnapshot:
    """All answers but the explanations; ``measured`` is None if nobody was asked."""
    read = objects.read
    pods = None if measured is None else measured.pods
    if measured is not None:
        read = msgspec.structs.replace(read, notes=(*read.notes, *measured.notes))
    whole = inventory(read.objects, units, read.as_of, read.scheduling)
    limits = None if measured is None else measured.limits
    whole = msgspec.structs.replace(whole, notes=(*read.notes, *whole.notes), limits=limits)
    groups = {}
    for by in GROUPS:
        found, notes = groups_of(read, units, by, measured=pods)
        groups[by] = groups_document(found, by, read.as_of, notes)
    view, notes = queues_view(read, units, pods)
    findings = diagnosis(objects.facts.as_of, tuple(cluster_findings(objects.facts)))
    inspected = inventory_document(whole, read.as_of)
    return FleetSnapshot(
        objects.name,
        read.as_of,
        objects.is_dump,
        tuple(dict.fromkeys((*whole.notes, *objects.notes))),
        whole,
        inspected,
        groups,
        queues_document(view, tuple(view.queues.tree.walk()), read.as_of, notes),
        plan_document(objects.prepared.plan),
        diagnosis_document(findings),
        read.marks,
        Answers(objects, units, measured),
        measured,
        history,
        objects.repairs,
        tuple(other_nodes(inspected, read.objects.nodes)),
        flags,
    )
