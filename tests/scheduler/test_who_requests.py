"""Annotations that a user writes close no node, hold no GPU and give none away: over HTTP."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.metrics import SCHEDULER
from tests.scheduler.generated import STATES
from tests.scheduler.served import NOW, Served
from tests.scheduler.test_differential import QUARTERS, filled, limits
from tests.scheduler.test_other_schedulers import RESERVED
from tests.scheduler.test_promise import KEYS, NODES, SCHEMES, TEXTS
from tests.support.web_helpers import fetch
from vgpu.kube.kinds import NODES as NODE_KIND
from vgpu.kube.kinds import PODS
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Namespace, Pod
from vgpu.placement.node_view import StandingReason, foreign_reservation, node_view
from vgpu.placement.result import PlacementReason

FREE = (["n1"], {})
SYSTEMS = sorted(NODES)
WHOLE = {
    "hami": {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 16384, "nvidia.com/gpucores": 100},
    "volcano": {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 16384},
    "gaia": {"tencent.com/vcuda-core": 200},
    "gpushare": {"aliyun.com/gpu-mem": 16},
}
"""What leaves nothing of a node with two GPUs of 16 GiB, but of gpushare's one GPU."""

_ACK = "scheduler.framework.gpushare.allocation"

FORGED = [
    ("hami", {"hami.io/vgpu-devices-allocated": "x"}),
    ("hami", {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,16384,100:GPU-1,NVIDIA,16384,100:;"}),
    ("hami", {"hami.io/vgpu-devices-to-allocate": "GPU-0,NVIDIA,x,0:;"}),
    ("hami", {"hami.io/vgpu-devices-allocated": ";GPU-0,NVIDIA,1,0:;;;"}),
    ("volcano", {"volcano.sh/vgpu-ids-new": "x"}),
    ("volcano", {"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,16384,0:GPU-1,NVIDIA,16384,0:"}),
    ("volcano", {"volcano.sh/devices-to-allocate": "GPU-0,NVIDIA"}),
    ("volcano", {"volcano.sh/gpu-index": "0"}),
    ("gpushare", {"ALIYUN_COM_GPU_MEM_IDX": "0"}),
    ("gpushare", {"ALIYUN_COM_GPU_MEM_IDX": "x"}),
    ("gpushare", {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}),
    ("gpushare", {_ACK: "{"}),
    ("gpushare", {_ACK: '{"0":{"0":16,"1":16}}'}),
    ("gaia", {"tencent.com/predicate-gpu-idx-0": "0,1"}),
    ("gaia", {"tencent.com/predicate-gpu-idx-0": "zero"}),
    ("gaia", {"tencent.com/gpu-assigned": "perhaps"}),
]


class Node(Served):
    """Our scheduler with one node of two GPUs with 16 GiB, on a clock that is set by hand."""

    def __init__(self, system, node=None):
        self.now = NOW
        super().__init__(clock=lambda: self.now)
        self.system = system
        self.cache.set_node("n1", node or NODES[system])

    def add(self, name, asked, annotations=None, *, node="n1", **fields):
        """An event of a pod, by the API server's JSON."""
        pod = Pod(
            PodRef(f"uid-{name}", "ns", name),
            containers=(Container("main", asked),) if isinstance(asked, dict) else asked,
            annotations=annotations or {},
            node=node,
            phase="Running" if node else "Pending",
            **fields,
        )
        self.show(name, pod)
        return pod

    def asked(self, asked, name="probe"):
        pod = self.add(name, asked, node="")
        answer = self.filter(pod, ["n1"])
        self.show(name, None)
        return answer


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_pod_that_requests_nothing_takes_nothing(system):
    """Bound or not, whichever form was forged; ``gpumem`` alone brings a bound pod no device."""
    with Node(system) as served:
        for annotations in (each for name, each in FORGED if name == system):
            for node, asked in (("n1", {}), ("n1", {"nvidia.com/gpumem": 4096}), ("", {})):
                reserved = {} if node else RESERVED[system](NOW)
                served.add("forged", asked, {**reserved, **annotations}, node=node)
                assert served.asked(WHOLE[system]) == FREE
                assert standing(served) == []
                served.show("forged", None)


def standing(served):
    """The nodes and pods of the metric of pods that stand in the way of others."""
    name = "vgpu_extender_standing_pod_info"
    (family,) = (each for each in SCHEDULER.families if each.name == name)
    view = SimpleNamespace(standing=served.cache.standing())
    return [(node, pod) for node, _, pod, _ in family.value(view)]


@pytest.mark.parametrize("system", SYSTEMS)
@given(data=st.data())
def test_whatever_the_annotations_of_a_pod_without_a_request_are_no_number_changes(system, data):
    (scheme,) = (each for each in SCHEMES if each.row.name == system)
    node = data.draw(st.sampled_from(STATES[system]))
    bound = filled(node, scheme, data.draw(st.lists(st.tuples(QUARTERS, st.just(1)), max_size=3)))
    annotations = data.draw(st.dictionaries(st.sampled_from(KEYS[system]), TEXTS))
    asked = data.draw(st.sampled_from(({}, {"nvidia.com/gpumem": 1}, {"nvidia.com/priority": 1})))
    forged = Pod(
        PodRef("uid-forged", "ns", "forged"),
        node="n1",
        annotations=annotations,
        containers=(Container("main", asked, others={"rdma/hca": 1}),),
    )
    before = node_view(node, scheme, bound, (), (), now=NOW)
    assert node_view(node, scheme, [*bound, forged], (), (), now=NOW) == before
    promise = foreign_reservation(structs.replace(forged, node=""), SCHEMES)
    promised = [promise] if promise else []
    assert node_view(node, scheme, bound, promised, (), now=NOW) == before


@pytest.mark.parametrize("system", SYSTEMS)
@given(data=st.data())
def test_whatever_the_annotations_of_a_bound_pod_are_its_request_is_not_free(system, data):
    """Σ in use ≥ Σ in use with the claim that its scheduler wrote, at any time after it was bound.

    A claim may name another GPU than the pod is on, also one that is full.
    """
    (scheme,) = (each for each in SCHEMES if each.row.name == system)
    node = NODES[system]
    fillers = st.lists(st.tuples(QUARTERS, st.integers(1, 2)), min_size=1, max_size=3)
    *others, honest = filled(node, scheme, data.draw(fillers))
    edited = data.draw(st.dictionaries(st.sampled_from(KEYS[system]), TEXTS))
    base = data.draw(st.sampled_from((honest.annotations, {})))
    forged = structs.replace(honest, annotations={**base, **edited})
    after = data.draw(st.sampled_from((0.0, 299.0, 300.0, 10_000.0)))

    seen = {honest.ref.uid: NOW}

    def in_use(pod):
        view = node_view(node, scheme, [*others, pod], (), (), now=NOW + after, seen=seen)
        assert view.reason is None
        gpus = view.candidate.gpus
        return sum(gpu.memory_bytes for gpu in gpus), sum(gpu.cores_milli for gpu in gpus)

    assert all(own >= true for own, true in zip(in_use(forged), in_use(honest), strict=True))


@pytest.mark.parametrize(
    ("system", "asked", "annotations"),
    [
        (
            "hami",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 12288},
            {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,0,0:;"},
        ),
        (
            "hami",
            {"nvidia.com/gpu": 1},
            {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1,0:;"},
        ),
        (
            "hami",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 75},
            {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,0,0:;"},
        ),
        (
            "hami",  # reserved by HAMi before 2.10: the container has no limit
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 0},
            {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,0,0:;"},
        ),
        (
            "volcano",
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 12288},
            {"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,0,0:"},
        ),
        (
            "volcano",
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 0},
            {"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,0,0:"},
        ),
        (
            "gpushare",
            {"aliyun.com/gpu-mem": 12},
            {_ACK: '{"0":{"0":1}}', "scheduler.framework.gpushare.assigned": "true"},
        ),
        (
            "gpushare",
            {"aliyun.com/gpu-mem": 12},
            {_ACK: '{"0":{"0":0}}', "scheduler.framework.gpushare.assigned": "true"},
        ),
        (
            "hami",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 12288},
            {"hami.io/vgpu-devices-allocated": "GPU-of-another-node,NVIDIA,12288,0:;"},
        ),
        (
            "gaia",
            {"tencent.com/vcuda-core": 75, "tencent.com/vcuda-memory": 48},
            {"tencent.com/predicate-gpu-idx-0": "9"},
        ),
    ],
)
def test_an_edited_claim_does_not_free_its_gpu_for_a_second_pod(system, asked, annotations):
    """One GPU is taken for certain; nothing large fits twice."""
    with Node(system) as served:
        served.add("forged", asked, annotations, started_at=NOW - 1000)
        one = {name: amount for name, amount in WHOLE[system].items() if "core" not in name}
        one = one | dict.fromkeys(one.keys() & {"nvidia.com/gpu", "volcano.sh/vgpu-number"}, 1)
        if system == "gaia":
            one = {"tencent.com/vcuda-core": 100}
        pod = served.add("large", one, node="")
        assert served.filter(pod, ["n1"]) == FREE
        assert served.bind(served.api.store(pod).ref, "n1") == ""
        served.show("large", served.api.pods["large"])
        taken, refused = served.filter(served.add("second", one, node=""), ["n1"])
        assert taken == []
        assert refused["n1"] in (
            PlacementReason.MEMORY,
            PlacementReason.EXCLUSIVE,
            PlacementReason.NO_FITTING_GPU,
            PlacementReason.POD_WITHOUT_GPU,
        )


@pytest.mark.parametrize(
    "annotations", [{}, {"hami.io/vgpu-devices-allocated": "x"}], ids=["missing", "unreadable"]
)
def test_a_bound_pod_without_a_readable_claim_costs_its_own_request_and_is_named(annotations):
    reason = StandingReason.CLAIM_UNREADABLE if annotations else StandingReason.CLAIM_MISSING
    named = f"pod ns/riddle: {reason.explanation}"
    half = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
    whole = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16384}
    without_gpu = ([], {"n1": PlacementReason.POD_WITHOUT_GPU})
    with Node("hami") as served:
        served.add("riddle", half, annotations)
        assert served.asked({**half, "nvidia.com/gpu": 2}) == FREE, "beside it on every GPU"
        waiting = served.add("waiting", whole, node="")
        assert served.filter(waiting, ["n1"]) == without_gpu
        assert served.texts["n1"].endswith(named)
        assert named in fetch(served.server.addresses[0], "/explain/ns/waiting")[2].decode()
        assert any(named in message for message in served.events())
        assert standing(served) == [("n1", "riddle")]
        served.changed()
        served.now += 299
        served.settle()
        assert served.changed() == []
        assert served.filter(waiting, ["n1"]) == without_gpu
        served.now += 1
        assert served.filter(waiting, ["n1"]) == FREE, "then on one GPU only"
        served.settle()
        assert served.changed() == ["n1"], "no event shows it: rejected pods are woken"
        assert served.asked({**whole, "nvidia.com/gpu": 2}) == without_gpu
        served.add("riddle", half, {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,8192,0:;"})
        assert standing(served) == []


def test_the_metric_names_a_pod_also_after_its_node_has_changed():
    """No view is asked for between an event and the next request."""
    half = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
    with Node("hami") as served:
        served.add("riddle", half)
        assert served.asked(half) == FREE
        served.add("other", half, {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,8192,0:;"})
        assert standing(served) == [("n1", "riddle")]


def test_an_edit_does_not_restart_the_five_minutes():
    half = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
    whole = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16384}
    with Node("hami") as served:
        for number in range(4):
            served.add("riddle", half, {"hami.io/vgpu-devices-allocated": "x" * (number + 1)})
            served.now += 100
        assert served.asked(whole) == FREE


RENAMED = "acme.com/vgpu"


def renamed_node(*also):
    """A node of HAMi whose resource has another name, by the API server's JSON."""
    capacity = dict.fromkeys((RENAMED, *also), "20") | {"cpu": "8"}
    meta = {"name": "n1", "annotations": dict(NODES["hami"].annotations)}
    status = {"capacity": capacity, "allocatable": capacity}
    return NODE_KIND.one(json.dumps({"metadata": meta, "status": status}).encode())


def foreign_pod(name, asked, devices):
    """A bound pod of resources that no system knows, by the API server's JSON."""
    resources = {"limits": asked, "requests": asked}
    return PODS.one(
        json.dumps(
            {
                "metadata": {
                    "name": name,
                    "namespace": "ns",
                    "uid": f"uid-{name}",
                    "annotations": {"hami.io/vgpu-devices-allocated": devices},
                },
                "spec": {
                    "nodeName": "n1",
                    "containers": [{"name": "main", "image": "x", "resources": resources}],
                },
                "status": {"phase": "Running"},
            }
        ).encode()
    )


@pytest.mark.parametrize(
    ("asked", "devices", "held"),
    [
        ({RENAMED: "1"}, "GPU-0,NVIDIA,4096,30:;", [4096, 0]),
        ({RENAMED: "2"}, "GPU-0,NVIDIA,1024,0:GPU-1,NVIDIA,2048,0:;", [1024, 2048]),
        ({RENAMED: "1"}, "GPU-0,NVIDIA,1024,0:GPU-1,NVIDIA,2048,0:;", [1024, 0]),
        ({RENAMED: "1"}, "x", [0, 0]),
        ({"rdma/hca": "1"}, "x", [0, 0]),
        ({"unknown.com/thing": "8"}, "GPU-0,NVIDIA,4096,30:;", [0, 0]),
        ({"cpu": "1"}, "GPU-0,NVIDIA,4096,30:;", [0, 0]),
    ],
)
def test_a_resource_that_no_system_knows_counts_as_the_claim_beside_it(asked, devices, held):
    """On at most as many GPUs as units, if the node advertises it; an unreadable claim is none."""
    with Node("hami", renamed_node("rdma/hca")) as served:
        served.show("theirs", foreign_pod("theirs", asked, devices))
        view = served.cache.view("n1")
        assert [gpu.memory_bytes >> 20 for gpu in view.candidate.gpus] == held
        assert (view.reason, view.standing) == (None, ())


def test_the_names_that_only_schedulers_count_are_those_of_the_codecs():
    for scheme in SCHEMES:
        row, codec = scheme.dialect_row, scheme.codec
        assert {*row.only_counted, *row.unread} <= set(codec.only_counted)
        assert set(row.resources) <= {*codec.advertised, *codec.only_counted}
        assert limits(row.name, 1, 1).keys() & set(codec.advertised)


@pytest.mark.parametrize(
    ("system", "asked", "annotations", "held"),
    [
        (
            "hami",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024},
            {"hami.io/vgpu-devices-allocated": FORGED[1][1]["hami.io/vgpu-devices-allocated"]},
            [(16384, 1000), (0, 0)],
        ),
        (
            "volcano",
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024},
            {"volcano.sh/vgpu-ids-new": "GPU-1,NVIDIA,16384,0:GPU-0,NVIDIA,16384,0:"},
            [(0, 0), (16384, 0)],
        ),
        (
            "gpushare",
            {"aliyun.com/gpu-mem": 8},
            {_ACK: '{"0":{"0":16,"1":16}}'},
            [(16384, 0), (0, 0)],
        ),
        # Parts of what one GPU has, on several: ACK's form.
        (
            "gpushare",
            {"aliyun.com/gpu-mem": 8},
            {_ACK: '{"0":{"0":4,"1":4}}'},
            [(4096, 0), (4096, 0)],
        ),
    ],
    ids=["hami", "volcano", "ACK", "ACK's parts"],
)
def test_a_bound_pod_counts_at_most_a_whole_gpu_for_each_that_it_requests(
    system, asked, annotations, held
):
    assigned = {"scheduler.framework.gpushare.assigned": "true"}
    with Node(system) as served:
        served.add("forged", asked, {**annotations, **(assigned if _ACK in annotations else {})})
        gpus = served.cache.view("n1").candidate.gpus
        assert [(gpu.memory_bytes >> 20, gpu.cores_milli) for gpu in gpus] == held


@pytest.mark.parametrize("system", ["hami", "volcano"])
def test_annotations_of_another_system_hide_no_reservation(system):
    """A pod may request a resource that no system knows beside its GPUs."""
    asked = {"hami": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}}.get(
        system, {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096}
    )
    containers = (Container("main", asked, others={"rdma/hca": 1}),)
    with Node(system) as served:
        both = RESERVED["hami"](NOW) | RESERVED["volcano"](NOW)
        served.add("theirs", containers, both, node="")
        gpus = served.cache.view("n1").candidate.gpus
        assert [gpu.memory_bytes >> 20 for gpu in gpus] == [0, 4096]
        assert served.cache.view("n1").standing[0].pod.name == "theirs"


def test_a_claim_on_another_node_places_nothing_here():
    half = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
    devices = {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,8192,0:;"}
    with Node("hami") as served:
        served.add("moved", half, {**devices, "hami.io/vgpu-node": "n2"})
        view = served.cache.view("n1")
        assert [gpu.memory_bytes >> 20 for gpu in view.candidate.gpus] == [8192, 8192]
        assert [each.reason for each in view.standing] == [StandingReason.CLAIM_MISSING]


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"hami.io/vgpu-devices-allocated": "x"},
        {"hami.io/vgpu-devices-allocated": "GPU-9,NVIDIA,4096,0:;"},
        {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,4096,0:;", "hami.io/vgpu-node": "n2"},
    ],
    ids=["missing", "unreadable", "of no GPU of the node", "of another node"],
)
def test_a_quota_of_a_model_counts_a_pod_on_an_unknown_gpu_once(annotations):
    """All GPUs of the node are of this model, so the unknown one is, too."""
    limit = Namespace("ns", annotations={"vgpu.dev/quota-memory": "Tesla T4=1Ti"})
    with Node("hami") as served:
        served.cache.set_namespace("ns", limit)
        served.add("riddle", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}, annotations)
        (quota,) = served.cache.limited()
        assert (quota.used["Tesla T4"]["gpus"], quota.used["Tesla T4"]["memory"]) == (1, 4 << 30)
        assert "memory" not in quota.used.get("", {})
