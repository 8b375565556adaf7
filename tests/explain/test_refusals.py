"""Why a pod is refused although nodes have room: the cause with evidence, or that it is unknown."""

import pytest
from msgspec import structs

from tests.explain.test_explain_pods import STALE, asking, decisive, explanation
from tests.reconciler.samples import GPUS, HOUR, NOW, lock, node, pod, refused
from vgpu.model.objects import Namespace, Node
from vgpu.model.taints import Taint
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.fit.answer import answer, rejection_of
from vgpucli.prediction import ReadObjects, SchedulingSimulation, filled_cache

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def hami(name="waits", **fields):
    """A pod of HAMi that no scheduler has bound."""
    one = pod(name, "hami", node="", claim=None, phase="Pending")
    fields = {"scheduler": "hami-scheduler"} | fields
    return structs.replace(one, statuses=(), scheduled_at=NOW - HOUR, **fields)


def hami_node(name="gpu-1", **fields):
    return node(name, "hami", **fields)


REFUSED = "0/1 nodes are available: 1 CardInsufficientMemory."


def test_the_lock_of_a_node_is_the_reason_with_its_owner():
    owner = refused(pod("before", "hami"))
    locked = hami_node(annotations=lock(owner))
    message = "binding rejected: node gpu-1 has been locked within 5m0s: node lock contention"
    explained = explanation(hami(unschedulable=message), locked, owner)
    assert decisive(explained)[:2] == (WayStep.RESERVED, ExplainOutcome.FAILED)
    assert decisive(explained)[2] == ["owner_ended", "node_locked"]
    assert "node gpu-1 is locked for pod ml/before" in explained.conclusion
    assert "stale_lock" in explained.advice
    young = hami_node(annotations=lock(pod("other", "hami", phase="Pending"), age=5))
    explained = explanation(hami(unschedulable=message), young)
    assert decisive(explained)[2] == ["node_locked"]
    assert "restart" not in explained.advice


def test_a_lock_is_no_proof_that_a_scheduler_is_stale():
    locked = hami_node(annotations=lock(pod("other", "hami", phase="Pending"), age=5))
    explained = explanation(hami(unschedulable=REFUSED), locked)
    assert decisive(explained)[2] == ["unknown_refusal"]
    assert explained.advice == ""
    assert "CardInsufficientMemory" in explained.conclusion


def test_a_pod_elsewhere_that_reserves_the_gpus_is_named():
    elsewhere = pod("moved", "hami", node="gpu-1", phase="Running")
    elsewhere = structs.replace(elsewhere, node="gpu-2")
    nodes = hami_node("gpu-1"), hami_node("gpu-2")
    explained = explanation(hami(unschedulable=REFUSED), *nodes, elsewhere)
    assert decisive(explained)[2] == ["foreign_reservation"]
    assert "ml/moved is bound to node gpu-2" in explained.conclusion
    assert "restart" not in explained.advice


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("nvidia.com/gpu.memory", "nvidia.com/gpumem"), ("rdma/hca", "")],
)
def test_a_resource_that_no_node_advertises_has_the_nearest_name(name, nearest):
    (container,) = hami().containers
    wants = structs.replace(container, others={name: 1})
    message = f"0/1 nodes are available: 1 Insufficient {name}."
    one = hami(unschedulable=message, containers=(wants,))
    explained = explanation(one, hami_node())
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, ["missing_resource"])
    assert name in explained.conclusion
    assert nearest in explained.conclusion
    assert explained.nodes == ()
    has_it = hami_node(others=frozenset({name}))
    assert decisive(explanation(one, has_it))[2] == ["other_checks"]


def test_resources_that_only_hamis_scheduler_counts_are_not_missing():
    (container,) = hami().containers
    wants = structs.replace(container, limits={**container.limits, "nvidia.com/gpucores": 30})
    counted = ("nvidia.com/gpucores", "nvidia.com/gpumem")
    parts = ", ".join(f"1 Insufficient {name}" for name in counted)
    message = f"0/1 nodes are available: {parts}."
    one = hami(unschedulable=message, containers=(wants,), scheduler="default-scheduler")
    placed = pod("placed", "hami", phase="Running", scheduler="hami-scheduler")
    explained = explanation(one, hami_node(), placed)
    assert decisive(explained)[2] == ["wrong_scheduler"]
    assert "schedulerName is default-scheduler" in explained.conclusion
    texts = " ".join(explained.decisive.evidence)
    assert "placed by hami-scheduler, such as ml/placed" in texts
    assert "schedulerName" in explained.advice


@pytest.mark.parametrize("resource", ["gpumem", "gpucores", "gpumem-percentage", "priority"])
@pytest.mark.parametrize(
    ("scheduler", "code"),
    [
        ("", "wrong_scheduler"),
        ("default-scheduler", "wrong_scheduler"),
        ("volcano", "wrong_scheduler"),
        ("hami-scheduler", "counted_without_extender"),
        ("my-hami", "counted_without_extender"),
    ],
)
def test_the_right_scheduler_that_counts_them_itself_is_not_called_wrong(resource, scheduler, code):
    name = f"nvidia.com/{resource}"
    (container,) = hami().containers
    wants = structs.replace(container, limits={**container.limits, name: 1})
    message = f"0/1 nodes are available: 1 Insufficient {name}."
    one = hami(unschedulable=message, containers=(wants,), scheduler=scheduler)
    explained = explanation(one, hami_node())
    assert decisive(explained)[2] == [code]
    assert ("check-config" in explained.advice) is (code == "counted_without_extender")
    assert name in " ".join(explained.decisive.evidence)


def test_the_default_scheduler_is_the_right_one_where_it_places_the_pods_of_the_system():
    (container,) = hami().containers
    wants = structs.replace(container, limits={**container.limits, "nvidia.com/gpucores": 30})
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpucores."
    one = hami(unschedulable=message, containers=(wants,), scheduler="default-scheduler")
    placed = pod("placed", "hami", phase="Running", scheduler="default-scheduler")
    assert decisive(explanation(one, hami_node(), placed))[2] == ["counted_without_extender"]


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/gpu.memory",
        "amd.com/gpu",
        "volcano.sh/vgpu-memory",
        "aliyun.com/gpu-mem",
        "koordinator.sh/gpu-core",
    ],
)
def test_a_resource_of_gpus_that_the_pod_does_not_request_never_excludes_gpus(name):
    message = f"0/1 nodes are available: 1 Insufficient {name}."
    explained = explanation(hami(unschedulable=message), hami_node())
    assert decisive(explained)[2] == ["other_checks"]
    assert name in explained.advice
    assert "GPUs are not the reason" not in explained.advice


def test_a_webhook_that_skips_the_pod_is_named():
    space = Namespace("ml", labels={"hami.io/webhook": "ignore"})
    one = refused(
        structs.replace(pod("only-gpu", "hami", claim=None), scheduler="default-scheduler")
    )
    explained = explanation(one, hami_node(), namespaces=(space,))
    assert decisive(explained)[:2] == (WayStep.RESERVED, ExplainOutcome.FAILED)
    assert decisive(explained)[2] == ["wrong_scheduler"]
    assert any("Namespace ml has the label" in text for text in explained.decisive.evidence)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('Post "http://127.0.0.1/filter": dial tcp: connect: connection refused', "extender_fails"),
        (
            "0/1 nodes are available: waiting for resource claim to be allocated.",
            "resource_claims_wait",
        ),
        ("pod group is not ready, 3 Pending, 3 minAvailable.", "pod_group_waits"),
        ("queue resource quota insufficient: insufficient nvidia.com/gpu", "queue_full"),
        ("0/1 nodes are available: 1 ResourceQuotaNotFit.", "scheduler_quota"),
        ("0/1 nodes are available: 1 NodeUnfitPod.", "unknown_refusal"),
        ("no room", "unknown_refusal"),
        (f"{REFUSED[:-1]}, 1 x.", "unknown_refusal"),
    ],
)
def test_what_the_message_names_is_the_reason_and_never_a_stale_scheduler(message, code):
    explained = explanation(hami(unschedulable=message), hami_node())
    assert decisive(explained)[2] == [code]
    assert "restart" not in explained.advice
    assert "GPUs are not the reason" not in explained.advice
    assert any(message.rstrip(".") in text for text in explained.decisive.evidence)


def test_gpus_are_excluded_only_if_no_part_names_them():
    cpu, both = (
        "0/2 nodes are available: 2 Insufficient cpu.",
        "0/2 nodes are available: 1 Insufficient cpu, 1 CardInsufficientMemory.",
    )
    explained = explanation(hami(unschedulable=cpu), hami_node())
    assert decisive(explained)[2] == ["other_checks"]
    assert explained.advice == (
        "correct what kube-scheduler names: 2 Insufficient cpu; GPUs are not the reason"
    )
    explained = explanation(hami(unschedulable=both), hami_node())
    assert decisive(explained)[2] == ["other_checks"]
    assert explained.advice == "correct what kube-scheduler names: 1 Insufficient cpu"


def test_a_taint_of_the_control_plane_is_none_of_the_gpu_nodes():
    message = (
        "0/4 nodes are available: 1 2/2 CardInsufficientMemory, 3 node(s) had untolerated taint"
        f" {{{CONTROL_PLANE}: }}."
    )
    taints = (Taint(CONTROL_PLANE, "", "NoSchedule"),)
    others = [Node(f"cp-{number}", ready=True, taints=taints) for number in range(3)]
    explained = explanation(hami(unschedulable=message), hami_node(), *others)
    assert decisive(explained)[2] == ["stale_scheduler"]
    both = hami_node("gpu-2", taints=taints)
    explained = explanation(hami(unschedulable=message), hami_node(), both)
    assert decisive(explained)[2] == ["other_checks"]


def test_a_gate_has_its_name_and_its_owner():
    explained = explanation(asking(gated=True, gates=("kueue.x-k8s.io/admission", "a/b")))
    assert explained.decisive.evidence[:2] == (
        "scheduling gate kueue.x-k8s.io/admission, which Kueue sets and removes",
        "scheduling gate a/b",
    )


def test_a_pod_that_uses_resource_claims_is_never_proof_of_a_stale_scheduler():
    one = asking(unschedulable=STALE, uses_resource_claims=True)
    assert decisive(explanation(one))[2] == ["unknown_refusal"]


def test_a_resource_of_the_pods_system_is_missing_only_where_the_gpus_have_room():
    message = "0/1 nodes are available: 1 Insufficient volcano.sh/vgpu-memory."
    one = pod("waits", "volcano", node="", claim=None, phase="Pending", unschedulable=message)
    one = structs.replace(one, statuses=())
    advertised = {"volcano.sh/vgpu-number": 20}
    there = structs.replace(node("gpu-1", "volcano"), capacity=advertised, allocatable=advertised)
    explained = explanation(one, there)
    assert decisive(explained)[2] == ["missing_resource"]
    full = [
        pod(f"holder-{gpu}-{n}", "volcano", gpu=gpu, phase="Running")
        for gpu in range(2)
        for n in range(5)
    ]
    assert decisive(explanation(one, there, *full))[2] == ["memory"]


def test_units_that_a_node_cannot_allocate_are_not_called_in_use():
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    for allocatable, code in ((0, "nothing_allocatable"), (1, "partly_allocatable")):
        there = structs.replace(hami_node(), allocatable={"nvidia.com/gpu": allocatable})
        holders = [pod(f"p-{n}", "hami", gpu=n, phase="Running") for n in range(allocatable)]
        explained = explanation(hami(unschedulable=message), there, *holders)
        assert decisive(explained)[2] == [code]
        assert f"gpu-1: {allocatable} of 20 nvidia.com/gpu allocatable" in explained.conclusion
        assert explained.advice


@pytest.mark.parametrize("taint", ["taint {team: x}", "taint(s)"])
def test_a_taint_of_nodes_that_are_closed_to_the_pod_is_left_out(taint):
    """kube-scheduler 1.34.4 does not name the taint."""
    message = (
        "0/3 nodes are available: 1 CardInsufficientMemory,"
        f" 2 node(s) had untolerated {taint}. preemption: no."
    )
    others = [hami_node(f"gpu-{n}", taints=(Taint("team", "x", "NoSchedule"),)) for n in (2, 3)]
    waits = hami(unschedulable=message)
    assert decisive(explanation(waits, hami_node(), *others))[2] == ["stale_scheduler"]
    assert decisive(explanation(waits, hami_node(), others[0]))[2] == ["other_checks"]


def test_a_cause_that_the_message_names_decides_over_missing_room():
    """No lock, failed bind or silent extender follows from a full GPU."""
    full = [pod(f"full-{each}", "hami", gpu=each % GPUS) for each in range(8 * GPUS)]
    locked = hami_node(annotations=lock(refused(pod("before", "hami"))))
    refusing = 'Post "https://127.0.0.1:443/filter": dial tcp 127.0.0.1:443: connection refused'
    cases = [
        ("node gpu-1 has been locked within 5m0s", "lock_expired"),
        (refusing, "extender_fails"),
        ("binding rejected: already assigned to node gpu-9", "bound_elsewhere"),
    ]
    for message, code in cases:
        for node_of_case in (locked, hami_node(unschedulable=True, annotations=locked.annotations)):
            explained = explanation(hami(unschedulable=message), node_of_case, *full)
            nodes = next(step for step in explained.steps if step.step is WayStep.NODES)
            assert nodes.outcome is ExplainOutcome.FAILED
            assert decisive(explained)[0] is WayStep.RESERVED
            assert decisive(explained)[2][0] == code, message
    mixed = "0/2 nodes are available: 1 CardInsufficientMemory, 1 node lock contention."
    explained = explanation(hami(unschedulable=mixed), locked, *full)
    assert decisive(explained)[0] is WayStep.NODES


def test_nodes_of_another_system_never_decide_and_are_not_counted():
    others = [node(f"other-{number}", "gpushare") for number in range(2)]
    full = [pod(f"full-{each}", "hami", gpu=each % GPUS) for each in range(8 * GPUS)]
    explained = explanation(hami(unschedulable=REFUSED), hami_node(), *others, *full)
    assert decisive(explained)[2] == ["memory"]
    assert not any("sharing system" in text for text in explained.decisive.evidence)
    assert [group.reason.value for group in explained.nodes] == ["memory", "no_gpus"]
    with_room = explanation(hami(unschedulable=REFUSED), hami_node(), *others)
    assert "GPUs have room on 1 of 1 node: gpu-1" in with_room.steps[2].evidence
    none = explanation(hami(unschedulable=REFUSED), *others)
    assert decisive(none)[2] == ["no_gpus"]


def test_the_type_that_a_pod_wants_decides_where_no_gpu_has_it():
    """Also where the memory of such a GPU is checked first; a GPU of another type is no size."""
    (container,) = hami().containers
    large = structs.replace(container, limits={**container.limits, "nvidia.com/gpumem": 900_000})
    wants = hami(
        unschedulable="0/2 nodes are available: 2 CardTypeMismatch.",
        containers=(large,),
        annotations={"nvidia.com/use-gputype": "H100"},
    )
    explained = explanation(wants, hami_node("gpu-1"), hami_node("gpu-2"))
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, ["type"])
    assert explained.advice == "correct the annotations of the pod that choose GPUs"
    pinned = structs.replace(wants, annotations={"nvidia.com/use-gpuuuid": "GPU-elsewhere"})
    assert decisive(explanation(pinned, hami_node("gpu-1")))[2] == ["uuid"]


def test_nodes_of_excluded_types_never_decide_beside_one_of_the_wanted_type():
    nodes = []
    for number, model in enumerate(("H100", "A100", "A100")):
        there = hami_node(f"gpu-{number}")
        text = {key: value.replace("A100", model) for key, value in there.annotations.items()}
        nodes.append(structs.replace(there, annotations=text))
    full = [pod(f"f-{n}", "hami", node="gpu-0", gpu=n % GPUS) for n in range(8 * GPUS)]
    wants = hami(unschedulable=REFUSED, annotations={"nvidia.com/use-gputype": "H100"})
    explained = explanation(wants, *nodes, *full)
    assert decisive(explained)[2] == ["memory", "type"]
    assert [group.reason.value for group in explained.nodes] == ["memory", "type"]


@pytest.mark.parametrize("model", ["A100", "H100"])
def test_explain_fit_and_the_schedulers_event_name_one_cause(model):
    """Also where the wanted type, and the memory of its only GPU, are missing on most nodes."""
    wants = hami(unschedulable=REFUSED, annotations={"nvidia.com/use-gputype": "H100"})
    nodes = [hami_node("gpu-0"), hami_node("gpu-1"), hami_node("gpu-2")]
    text = {key: it.replace("A100", model) for key, it in nodes[0].annotations.items()}
    nodes[0] = structs.replace(nodes[0], annotations=text)
    full = [pod(f"f-{n}", "hami", node="gpu-0", gpu=n % GPUS) for n in range(8 * GPUS)]
    (scheme,) = (each for each in scheduler_schemes({}) if each.row.name == "hami")
    cache = filled_cache((scheme,), ReadObjects(NOW, nodes, [*full, wants], (), {}, (), (), None))
    demanded = demand_of(wants, (scheme,))
    simulation = SchedulingSimulation(cache, ["gpu-0", "gpu-1", "gpu-2"])
    event = rejection_of(simulation.place(*demanded), *demanded)
    fit = answer(simulation, demanded)
    explained = explanation(wants, *nodes, *full)
    assert fit.rejection == event
    first = explained.decisive.reasons[0].explanation
    assert first in explained.conclusion
    assert first in event.partition(";")[0]
    assert all(text in event for text in explained.steps[2].evidence)


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        ((900_000,), "(878.9 GiB (900000 MiB) requested, the largest GPU has 40.0 GiB)"),
        ((30_000, 30_000), "(2 shares of 29.3 GiB (30000 MiB) requested, the largest free"),
        ((30_000, 20_000), "(2 shares of up to 29.3 GiB (30000 MiB) requested, the largest free"),
    ],
)
def test_amounts_of_a_refusal_show_why_what_is_free_does_not_suffice(memory, text):
    """In explain and fit: the size of the largest GPU, and the number of shares."""
    (container,) = hami().containers
    asked = tuple(
        structs.replace(
            container, name=f"c{n}", limits={**container.limits, "nvidia.com/gpumem": each}
        )
        for n, each in enumerate(memory)
    )
    full = [pod(f"f-{n}-{k}", "hami", gpu=n) for n in range(1, GPUS) for k in range(8)]
    wants = hami(unschedulable=REFUSED, containers=asked)
    (scheme,) = (each for each in scheduler_schemes({}) if each.row.name == "hami")
    read = ReadObjects(NOW, [hami_node()], [*full, wants], (), {}, (), (), None)
    simulation = SchedulingSimulation(filled_cache((scheme,), read), ["gpu-1"])
    assert text in answer(simulation, demand_of(wants, (scheme,))).rejection
    assert any(text in each for each in explanation(wants, hami_node(), *full).steps[2].evidence)


def test_a_lock_that_is_gone_again_is_waited_for_without_its_pod():
    message = "binding rejected: node gpu-1 has been locked within 5m0s: node lock contention"
    explained = explanation(hami(unschedulable=message), hami_node())
    assert decisive(explained)[2] == ["node_locked"]
    assert "no annotation of node gpu-1 is a lock any more" in explained.conclusion
    assert explained.advice == "wait: kube-scheduler tries again"
    unread = explanation(hami(unschedulable=message.replace("gpu-1", "gpu-9")), hami_node())
    assert "any more" not in unread.conclusion
