"""Explanations beside the other commands: what these know of an object is in its explanation."""

from io import StringIO

import msgspec
import pytest
from hypothesis import given
from msgspec import structs
from rich.console import Console

from reconciler.cluster_index import ClusterIndex
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, Finding, Snapshot
from reconciler.observe.cluster import cluster_view
from reconciler.reasons import Cause, Rule
from reconciler.rules.conflicts import CAUSES
from tests.explain.test_explain_properties import all_findings, explained, lock_owners
from tests.scheduler.agreement import NOW, SCHEMES, UNITS, Cluster, clusters, nodes_of_one_system
from tests.scheduler.observed_systems import DRIVER
from tests.scheduler.test_differential import limits
from tests.scheduler.test_other_schedulers import RESERVED
from tests.scheduler.test_promise import NODES
from vgpu.inventory import Inventory, MaybeHeld, Objects, detect_schemes, inventory
from vgpu.inventory.pods_without_gpu import pods_without_gpu
from vgpu.kube.installation import ReportedNode
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import (
    Container,
    ContainerState,
    MalformedObject,
    Node,
    Pod,
    Status,
)
from vgpu.model.resource_claims import (
    AllocatedDevice,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from vgpu.model.units import GIB, rounded_size
from vgpu.placement.dialects import demand_of
from vgpu.placement.node_view import StandingReason
from vgpu.placement.result import PlacementReason
from vgpu.schemes.counted_claims import ClaimProblem
from vgpu.schemes.kubeshare.node import GPU_INFO
from vgpucli.doctor.answer import cluster_findings
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.doctor.model import Severity
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import ExplainOutcome, ExplainReason, WayStep
from vgpucli.explain.node import explain_gpu, explain_node, gpu_entry
from vgpucli.explain.pod import explain_pod
from vgpucli.free_texts import kept_text
from vgpucli.inspect.table import show

HOUR = 3600.0
UNKNOWN = (ExplainReason.ON_UNKNOWN_GPU, "")
FINE = ("runs and has its share", "othing is wrong", "Nothing that was checked is wrong")


def evidence_of(cluster):
    owners = lock_owners(cluster.objects, detect_schemes(cluster.objects, UNITS))
    objects = ClusterObjects(cluster.objects, cluster.now, lock_owners=owners)
    return ClusterEvidence(objects, UNITS)


def codes(explanation):
    return {
        (reason.code, reason.rule)
        for step in explanation.steps
        for reason in (*step.reasons, *step.remarks)
    }


def is_fine(explanation):
    return any(text in explanation.conclusion for text in FINE)


class Known(msgspec.Struct):
    """A cluster, and what `vgpu explain`, `inspect`, `reconcile plan` and `doctor` have of it."""

    cluster: Cluster
    evidence: ClusterEvidence
    shown: Inventory
    findings: list[Finding]

    @classmethod
    def of(cls, cluster):
        objects = cluster.objects
        return cls(
            cluster,
            evidence_of(cluster),
            inventory(objects, UNITS, cluster.now),
            all_findings(objects, cluster.now, UNITS),
        )

    def nodes(self):
        """The shown nodes that exist, each with its explanation."""
        for view in self.shown.nodes:
            if view.known:
                yield view, self.explained_node(view.node.name)

    def explained_node(self, name):
        return explain_node(self.evidence.of_node(self.evidence.node(name)))


def each_finding_is_in_the_explanation_of_its_object(known):
    broken = {each.ref.name for each in known.cluster.objects.malformed}
    for finding in known.findings:
        if finding.object_ref.name in broken:
            continue  # there is nothing of it to explain but this
        explanation = explained(known.evidence, finding)
        assert (finding.cause, finding.rule) in codes(explanation)
        assert not is_fine(explanation)


def nothing_is_fine_beside_a_conflict(known):
    """Neither its pod, nor its GPU."""
    for view, _ in known.nodes():
        conflicts = view.ledger.conflicts
        of_node = known.evidence.of_node(view.node) if conflicts else None
        for name in dict.fromkeys(each.device for each in conflicts if each.device):
            entry = gpu_entry(of_node, name)
            assert entry is None or not is_fine(explain_gpu(of_node, entry))
        pods = (each.pod for each in conflicts if each.pod is not None)
        for namespace, name in dict.fromkeys((each.namespace, each.name) for each in pods):
            pod = known.evidence.pod(namespace, name)
            assert not is_fine(explain_pod(known.evidence.of_pod(pod)))


def each_gpu_that_a_node_lost_is_in_the_explanation_of_the_node_and_its_gpus(known):
    for view, explanation in known.nodes():
        here = {entry.device.name for entry in view.ledger.devices}
        lost = {
            (cause, rule)
            for each in view.ledger.conflicts
            if each.device and each.device not in here and each.kind in CAUSES
            for rule, cause in (CAUSES[each.kind],)
        }
        assert lost <= codes(explanation)
        of_node = known.evidence.of_node(view.node) if lost else None
        for entry in view.ledger.devices if lost else ():
            assert lost <= codes(explain_gpu(of_node, entry))


def each_pod_in_the_way_is_in_the_explanation_of_its_node(known):
    for view, explanation in known.nodes():
        texts = [text for step in explanation.steps for text in step.evidence]
        for each in view.standing:
            assert any(each.text in text for text in texts)
        if view.standing or view.placement.closed is not None:
            assert not is_fine(explanation)


def nothing_is_fine_of_which_less_may_be_free(known):
    for view, explanation in known.nodes():
        maybe_held = view.maybe_held.memory_bytes > 0
        assert (UNKNOWN in codes(explanation)) == maybe_held
        assert not (maybe_held and is_fine(explanation))
        if not (view.on_unknown_gpu or view.standing):
            continue
        of_node = known.evidence.of_node(view.node)
        for entry in view.ledger.devices:
            of_gpu = explain_gpu(of_node, entry)
            maybe_held = view.maybe_held_of(entry).memory_bytes > 0
            assert (UNKNOWN in codes(of_gpu)) == maybe_held
            assert not (maybe_held and is_fine(of_gpu))
            kept = kept_text(view, entry)
            assert not kept or kept in of_gpu.steps[-1].evidence


def each_error_of_doctor_about_a_node_is_in_its_explanation(known):
    nodes = known.cluster.objects.nodes
    facts = ClusterFacts(known.cluster.now, is_dump=True, nodes=tuple(map(ReportedNode, nodes)))
    for found in cluster_findings(facts):
        if found.severity is not Severity.ERROR:
            continue
        for node in nodes:
            if any(node.name in text for text in found.evidence):
                explanation = known.explained_node(node.name)
                assert found.reason.value in {code for code, _ in codes(explanation)}
                assert not is_fine(explanation)


def no_scheduler_is_stale_beside_a_pod_in_the_way(known):
    """On nodes of the system of the pod that waits."""
    waiting = known.evidence.pod("ns", "wants")
    demanded = None if waiting is None else demand_of(waiting, SCHEMES)
    if not isinstance(demanded, tuple):
        return
    system = demanded[0].row.name
    if any(view.standing and view.placement.system == system for view in known.shown.nodes):
        reasons = codes(explain_pod(known.evidence.of_pod(waiting)))
        assert (ExplainReason.STALE_SCHEDULER, "") not in reasons


def the_view_and_the_ledger_know_the_same_pods_without_gpu(known):
    """Of the system that a node with a view has, by the API server's objects alone."""
    objects = known.cluster.objects
    detected = detect_schemes(objects, UNITS)
    named = nodes_of_one_system(objects)
    for of_node in known.shown.nodes:
        found = of_node.placement.view
        if of_node.node.name not in named or found is None or not found.candidate.gpus:
            continue
        pods = [pod for pod in detected.pods if pod.node == of_node.node.name]
        lacking = {
            (each.pod.uid, each.is_unread, each.named)
            for codec, _, of_codec in pods_without_gpu(
                of_node.node, of_node.ledger, pods, detected.codecs
            )
            for each in of_codec
            if codec.name == of_node.placement.system
        }
        assert lacking == {
            (each.pod.uid, each.reason is StandingReason.CLAIM_UNREADABLE, each.named)
            for each in found.standing
            if each.reason is not StandingReason.RESERVED
        }


def the_reconciler_knows_the_pods_in_the_way(known):
    """Bound pods by their requests; reservations that nobody has bound for hours by a finding."""
    cluster = known.cluster
    objects = cluster.objects
    named = nodes_of_one_system(objects)
    schemes = detect_schemes(objects, UNITS)
    snapshot = Snapshot(now=cluster.now, complete=frozenset(Coverage))
    view = cluster_view(snapshot, objects, schemes, LedgerCache(), {})
    lacking = set(ClusterIndex(view.snapshot, view.codecs).without_gpu)
    unbound = {each.object_ref.uid for each in known.findings if each.rule is Rule.ASSUMED_UNBOUND}
    for of_node in known.shown.nodes:
        if of_node.node.name not in named:
            continue
        for standing in of_node.standing:
            if standing.reason is not StandingReason.RESERVED:
                assert standing.pod.uid in lacking
            elif cluster.now - NOW > HOUR:
                assert standing.pod.uid in unbound
                explanation = known.explained_node(of_node.node.name)
                texts = [text for step in explanation.steps for text in step.evidence]
                assert any(text.endswith("(assumed_unbound)") for text in texts)


@given(clusters())
def test_what_other_commands_know_of_an_object_is_in_its_explanation(cluster):
    known = Known.of(cluster)
    each_finding_is_in_the_explanation_of_its_object(known)
    nothing_is_fine_beside_a_conflict(known)
    each_gpu_that_a_node_lost_is_in_the_explanation_of_the_node_and_its_gpus(known)
    each_pod_in_the_way_is_in_the_explanation_of_its_node(known)
    nothing_is_fine_of_which_less_may_be_free(known)
    each_error_of_doctor_about_a_node_is_in_its_explanation(known)
    no_scheduler_is_stale_beside_a_pod_in_the_way(known)
    the_reconciler_knows_the_pods_in_the_way(known)
    the_view_and_the_ledger_know_the_same_pods_without_gpu(known)


@pytest.mark.parametrize("kind", [ContainerKind.APP, ContainerKind.INIT])
def test_a_bound_pod_that_waits_without_a_claim_is_reported_where_nothing_else_is_wrong(kind):
    node = structs.replace(NODES["gaia"], ready=True)
    waits = Pod(
        PodRef("uid", "ns", "waits"),
        node=node.name,
        containers=(Container("main", limits("gaia", 1, 1), kind),),
        phase="Pending",
        scheduled_at=NOW - HOUR,
    )
    (finding,) = all_findings(Objects((node,), (waits,)), NOW, UNITS)
    assert (finding.rule, finding.cause) == (Rule.ASSUMED_EXPIRED, Cause.WITHOUT_CLAIM)


def test_a_resource_claim_that_nobody_uses_is_in_the_explanation_of_its_node():
    result = AllocatedDevice("gpu", DRIVER, "n1", "gpu-0")
    claim = ResourceClaim("uid-claim", "ns", "claim", (result,), node="n1")
    published = ResourceSlice("s", DRIVER, "n1", 1, 1, "n1", (PublishedDevice("gpu-0", "GPU-0"),))
    claims = ClusterResourceClaims((claim,), (published,))
    cluster = Cluster(Objects((Node("n1", ready=True),), resource_claims=claims), NOW)
    explanation = Known.of(cluster).explained_node("n1")
    assert (Cause.RESERVED_FOR_NOBODY, Rule.RESOURCE_CLAIM) in codes(explanation)
    texts = [text for step in explanation.steps for text in step.evidence]
    assert "ResourceClaim ns/claim: it is reserved for no pod" in texts


def test_no_scheduler_is_called_stale_beside_a_pod_without_a_claim():
    """Each of two GPUs has 4 GiB less for it, and yet has room."""
    asked = limits("hami", 1, 1)
    text = f"0/1 nodes are available: 1 {PlacementReason.MEMORY.explanation}."
    wants = Pod(
        PodRef("uid-wants", "ns", "wants"),
        containers=(Container("main", asked),),
        phase="Pending",
        unschedulable=text,
    )
    standing = structs.replace(
        wants,
        ref=PodRef("uid-stands", "ns", "stands"),
        node="n1",
        phase="Running",
        unschedulable="",
    )
    node = structs.replace(NODES["hami"], ready=True)
    alone, beside = (
        codes(explain_pod(Known.of(Cluster(Objects((node,), pods), NOW)).evidence.of_pod(wants)))
        for pods in ((wants,), (wants, standing))
    )
    assert (ExplainReason.STALE_SCHEDULER, "") in alone
    assert (ExplainReason.STALE_SCHEDULER, "") not in beside


def test_a_pod_of_nvidias_plugin_is_on_an_unknown_gpu_of_a_node_of_kubeshare():
    units = {"nvidia.com/gpu": 2}
    info = {GPU_INFO: "GPU-0:16384,GPU-1:16384,"}
    node = Node("n1", annotations=info, capacity=units, allocatable=units, ready=True)
    asked = Container("main", {"nvidia.com/gpu": 1})
    whole = Pod(PodRef("uid", "ns", "whole"), node="n1", containers=(asked,), phase="Running")
    known = Known.of(Cluster(Objects((node,), (whole,)), NOW))
    ((view, explanation),) = known.nodes()
    assert view.maybe_held == MaybeHeld(16 * GIB, (whole.ref,))
    (plugin,) = (each for each in explanation.steps if each.step is WayStep.PLUGIN)
    assert plugin.evidence == ("nvidia.com/gpu: 2",)
    assert UNKNOWN in codes(explanation)
    nothing_is_fine_of_which_less_may_be_free(known)


def test_what_is_kept_free_of_a_gpu_is_one_sentence_in_every_command():
    """The annotations of the pod were made for another node."""
    node = structs.replace(NODES["hami"], ready=True)
    stands = Pod(
        PodRef("uid", "ns", "stands"),
        node=node.name,
        annotations=RESERVED["hami"](NOW, "other"),
        containers=(Container("main", limits("hami", 1, 1)),),
        phase="Running",
        scheduled_at=NOW - HOUR,
    )
    known = Known.of(Cluster(Objects((node,), (stands,)), NOW))
    ((view, explanation),) = known.nodes()
    kept = [text for entry in view.ledger.devices if (text := kept_text(view, entry))]
    assert kept == [f"{rounded_size(view.kept_bytes)} kept free for pod ns/stands"]
    assert view.kept_bytes
    assert not view.maybe_held.memory_bytes
    assert UNKNOWN not in codes(explanation)
    (line,) = (line for line in explanation.lines if "kept free" in line)
    assert line.endswith(kept[0])
    of_node = known.evidence.of_node(view.node)
    (entry,) = (each for each in of_node.ledger.devices if view.kept_of(each).memory_bytes)
    of_gpu = explain_gpu(of_node, entry)
    assert kept[0] in of_gpu.steps[-1].evidence
    assert UNKNOWN not in codes(of_gpu)
    printed = StringIO()
    show(Console(file=printed, width=80), known.shown, NOW)
    rows = printed.getvalue()
    assert kept[0] in rows
    assert "more kept free" not in rows


@pytest.mark.parametrize(
    ("gpu", "node", "text"),
    [
        ("GPU-gone", "n1", "the annotations name GPU GPU-gone, which the node does not have"),
        ("GPU-1", "other", ClaimProblem.OTHER_NODE.explanation),
    ],
)
def test_the_reason_of_a_pod_in_the_way_has_what_its_annotations_name(gpu, node, text):
    own = structs.replace(NODES["hami"], ready=True)
    named = {key: each.replace("GPU-1", gpu) for key, each in RESERVED["hami"](NOW, node).items()}
    stands = Pod(
        PodRef("uid", "ns", "stands"),
        node=own.name,
        annotations=named,
        containers=(Container("main", limits("hami", 1, 1)),),
        phase="Running",
        scheduled_at=NOW - HOUR,
    )
    known = Known.of(Cluster(Objects((own,), (stands,)), NOW))
    ((view, explanation),) = known.nodes()
    assert [each.text for each in view.standing] == [f"pod ns/stands: {text}"]
    (records,) = (each for each in explanation.steps if each.step is WayStep.RECORDS)
    assert f"pod ns/stands: {text}" in records.evidence
    each_gpu_that_a_node_lost_is_in_the_explanation_of_the_node_and_its_gpus(known)


def test_a_register_that_cannot_be_read_is_the_cause_in_every_command():
    register = "volcano.sh/node-vgpu-register"
    unread = structs.replace(
        NODES["volcano"],
        annotations={register: "GPU-1,10,32768,100,A10,true,hami-core:"},
        ready=True,
    )
    asked = (Container("main", limits("volcano", 1, 1)),)
    holds = Pod(
        PodRef("uid", "ns", "holds"),
        node=unread.name,
        annotations=RESERVED["volcano"](NOW - HOUR, unread.name),
        containers=asked,
        phase="Running",
        statuses=(Status("main", ContainerState.RUNNING),),
        scheduled_at=NOW - HOUR,
    )
    wants = Pod(PodRef("uid-wants", "ns", "wants"), containers=asked, phase="Pending")
    known = Known.of(Cluster(Objects((unread,), (holds, wants)), NOW))
    ((_, explanation),) = known.nodes()
    registered, *others = explanation.steps
    assert [reason.code for reason in registered.reasons] == ["unreadable_register", "unreadable"]
    (finding,) = (each for each in known.findings if each.cause is Cause.UNREADABLE_REGISTER)
    assert finding.object_ref.name == "n1"
    assert finding.action is None
    doctor = cluster_findings(ClusterFacts(NOW, nodes=(ReportedNode(unread),)))
    (error,) = (each for each in doctor if each.severity is Severity.ERROR)
    assert error.reason.value == "unreadable_register"
    assert error.evidence[0].startswith(f"1 node (n1): {register}")
    assert any(register in text for text in registered.evidence)
    assert not any(register in text for step in others for text in step.evidence)
    assert Cause.UNREADABLE_REGISTER.explanation in explanation.conclusion
    assert "device plugin of the node writes this annotation" in explanation.advice
    of_pod = explain_pod(known.evidence.of_pod(holds))
    assert not is_fine(of_pod)
    assert "Node n1" in {each.about for step in of_pod.steps for each in step.remarks}
    printed = StringIO()
    show(Console(file=printed, width=80), known.shown, NOW)
    assert "since the register cannot be read of n1" in " ".join(printed.getvalue().split())


def test_a_container_on_a_node_that_is_not_ready_is_not_known_to_run():
    asked = (Container("main", limits("hami", 1, 1)),)
    holds = Pod(
        PodRef("uid", "ns", "holds"),
        node="n1",
        annotations=RESERVED["hami"](NOW - HOUR, "n1"),
        containers=asked,
        phase="Running",
        statuses=(Status("main", ContainerState.RUNNING),),
    )
    for ready, outcome in ((True, ExplainOutcome.PASSED), (False, ExplainOutcome.NOT_CHECKED)):
        node = structs.replace(NODES["hami"], ready=ready)
        known = Known.of(Cluster(Objects((node,), (holds,)), NOW))
        explanation = explain_pod(known.evidence.of_pod(holds))
        (started,) = (each for each in explanation.steps if each.step is WayStep.STARTED)
        assert started.outcome is outcome


def holding(**fields):
    own = Pod(
        PodRef("uid", "ns", "holds"),
        node="n1",
        annotations=RESERVED["hami"](NOW - HOUR, "n1"),
        containers=(Container("main", limits("hami", 1, 1)),),
        phase="Running",
        statuses=(Status("main", ContainerState.RUNNING),),
    )
    return structs.replace(own, **fields)


def outcome_of(explanation, way):
    return next(each.outcome for each in explanation.steps if each.step is way)


@pytest.mark.parametrize("deleted_at", [None, NOW - HOUR])
def test_a_node_that_is_gone_is_the_cause_also_of_a_pod_that_is_being_deleted(deleted_at):
    """No kubelet ends the pod there, and nobody knows whether its containers still run."""
    other = structs.replace(NODES["hami"], name="n2")
    pod = holding(deleted_at=deleted_at)
    explanation = explain_pod(
        Known.of(Cluster(Objects((other,), (pod,)), NOW)).evidence.of_pod(pod)
    )
    assert outcome_of(explanation, WayStep.STARTED) is ExplainOutcome.NOT_CHECKED
    assert ExplainReason.NODE_GONE.explanation in explanation.conclusion
    assert "wait for the kubelet" not in explanation.advice


def test_a_node_whose_object_cannot_be_read_is_not_gone():
    other = structs.replace(NODES["hami"], name="n2")
    broken = MalformedObject("Node", PodRef("", "", "n1"), "annotations: a number")
    pod = holding()
    known = Known.of(Cluster(Objects((other,), (pod,), malformed=(broken,)), NOW))
    explanation = explain_pod(known.evidence.of_pod(pod))
    assert ("node_gone", "") not in codes(explanation)
    assert ("malformed", "malformed_object") in codes(explanation)
    assert "Node n1" in {each.about for step in explanation.steps for each in step.remarks}
    printed = StringIO()
    show(Console(file=printed, width=80), known.shown, NOW)
    assert "cannot be read" in printed.getvalue()
    assert "not a node of this cluster" not in printed.getvalue()


def test_the_pods_for_which_a_gpu_is_kept_free_are_a_few_names_and_a_count():
    """In the order of their names, for a node with the first of them in its closing sentence."""
    pods = [
        holding(ref=PodRef(f"uid-{9 - each}", "ns", f"kept-{each}"), annotations={}, statuses=())
        for each in range(5)
    ]
    ready = structs.replace(NODES["hami"], ready=True)
    known = Known.of(Cluster(Objects((ready,), tuple(pods)), NOW))
    ((view, explanation),) = known.nodes()
    (entry, *_) = view.ledger.devices
    assert kept_text(view, entry).endswith("for pods ns/kept-0, ns/kept-1, ns/kept-2 and 2 more")
    assert "pod ns/kept-0: " in explanation.conclusion
    assert "and 4 more pods" in explanation.conclusion
    assert explanation.advice == "vgpu explain pod ns/kept-0 shows what is wrong with it"
    of_gpu = explain_gpu(known.evidence.of_node(view.node), entry)
    assert "; Node n1: " in of_gpu.conclusion
