"""Reservations of the original schedulers for pods that are not bound: the day of the switch.

HAMi's scheduler, gpu-admission and older Volcanos write them with the node, and bind later. A
reservation counts on the GPUs that it names, for what its pod requests, as long as it stands; its
end wakes the pods that it kept waiting.
"""

import pytest
from msgspec import structs

from tests.scheduler.served import NOW, Served
from tests.scheduler.test_promise import NODES
from tests.support.web_helpers import fetch
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.node_view import StandingReason
from vgpu.placement.result import PlacementReason

OTHER = PlacementReason.OTHER_SCHEDULER
FREE = (["n1"], {})
HELD = ([], {"n1": OTHER})
THEIRS = f"pod ns/theirs: {StandingReason.RESERVED.explanation}"

LIMITS = {
    "hami": lambda gib: {"nvidia.com/gpu": 1, "nvidia.com/gpumem": gib * 1024},
    "gaia": lambda gib: {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": gib * 4},
    "gpushare": lambda gib: {"aliyun.com/gpu-mem": gib},
    "volcano": lambda gib: {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": gib * 1024},
    "older volcano": lambda gib: {"volcano.sh/gpu-memory": gib * 1024},
}
RESERVED = {
    "hami": lambda at, node="n1": {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": str(int(at)),
        "hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,4096,0:;",
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4096,0:;",
    },
    "gaia": lambda at, node="n1": {
        "tencent.com/predicate-node": node,
        "tencent.com/predicate-time": str(int(at) * 10**9),
        "tencent.com/predicate-gpu-idx-0": "1",
        "tencent.com/gpu-assigned": "false",
    },
    "volcano": lambda at, node="n1": {  # up to 1.15
        "volcano.sh/vgpu-node": node,
        "volcano.sh/vgpu-time": str(int(at)),
        "volcano.sh/vgpu-ids-new": "GPU-1,NVIDIA,4096,0:",
        "volcano.sh/devices-to-allocate": "GPU-1,NVIDIA,4096,0:",
    },
    "gpushare": lambda at, _="": {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(int(at) * 10**9),
    },
    "older volcano": lambda at, _="": {
        "volcano.sh/gpu-index": "1",
        "volcano.sh/gpu-assigned": "false",
        "volcano.sh/predicate-time": str(int(at) * 10**9),
    },
}


class Switched(Served):
    """Our scheduler with one node of two GPUs with 16 GiB, on a clock that is set by hand."""

    def __init__(self, system):
        self.now = NOW
        super().__init__(clock=lambda: self.now)
        self.system = system
        self.cache.set_node("n1", NODES[system])

    def waiting(self, name, gib=4, *, at=None, system=None):
        """A pod that waits; at the time ``at`` its system's original has reserved a GPU for it."""
        system = system or self.system
        annotations = {} if at is None else RESERVED[system](at)
        containers = (Container("main", LIMITS[system](gib)),)
        ref = PodRef(f"uid-{name}", "ns", name)
        pod = Pod(ref, containers=containers, phase="Pending", annotations=annotations)
        return self.again(pod)

    def again(self, pod, **changes):
        """The pod is written, and an event shows it."""
        stored = self.api.store(structs.replace(pod, **changes))
        self.show(pod.ref.name, stored)
        return stored

    def fill(self):
        """A bound pod holds the whole GPU that no reservation names."""
        annotations = {
            key: text.replace("GPU-1", "GPU-0").replace("4096", "16384")
            for key, text in RESERVED[self.system](NOW).items()
        }
        if self.system == "gaia":
            annotations["tencent.com/predicate-gpu-idx-0"] = "0"
        containers = (Container("main", LIMITS[self.system](16)),)
        ref = PodRef("uid-fill", "ns", "fill")
        self.show("fill", Pod(ref, "1", "n1", annotations, containers=containers, phase="Running"))

    def asked(self, pod):
        return self.filter(pod, ["n1"])


@pytest.fixture(params=["hami", "gaia", "volcano"])
def switched(request):
    with Switched(request.param) as switched:
        yield switched


def test_a_reservation_holds_the_gpu_that_it_names_and_no_other(switched):
    """Its pod is named wherever a pod is refused that fits without it."""
    switched.waiting("theirs", at=NOW)
    whole, larger = switched.waiting("whole", 16), switched.waiting("larger", 13)
    assert switched.asked(switched.waiting("beside", 12)) == FREE
    assert switched.asked(whole) == FREE, "on the other GPU"
    assert switched.bind(whole.ref, "n1") == ""
    switched.show("whole", switched.api.pods["whole"])
    assert switched.asked(larger) == HELD
    assert switched.texts["n1"] == f"{OTHER.explanation}: {THEIRS}"
    page = fetch(switched.server.addresses[0], "/explain/ns/larger")[2].decode()
    assert f"node n1: {OTHER.explanation} ({THEIRS})" in page
    assert f"in the way: {THEIRS}" in page
    assert any(THEIRS in message for message in switched.events())
    assert switched.bind(larger.ref, "n1") == OTHER


def test_the_pod_of_a_foreign_reservation_can_itself_be_placed_again(switched):
    theirs = switched.waiting("theirs", at=NOW)
    assert switched.asked(theirs) == FREE
    assert switched.bind(theirs.ref, "n1") == ""
    before, after = theirs.annotations, switched.api.pods["theirs"].annotations
    assert before.keys() <= after.keys()


def test_a_reservation_stands_as_long_as_its_annotations(switched):
    """HAMi and gpu-admission count it as long; its time may be any, and it may be rewritten."""
    theirs = switched.waiting("theirs", at=NOW - 10_000)
    switched.fill()
    ours = switched.waiting("ours", 13)
    for _ in range(3):
        assert switched.asked(ours) == HELD
        switched.now += 10_000
    switched.changed()
    switched.again(theirs, annotations={})
    assert switched.changed() == ["n1"], "pods that fit now are woken"
    assert switched.asked(ours) == FREE


def test_a_reservation_ends_when_its_pod_is_bound_or_gone(switched):
    theirs = switched.waiting("theirs", at=NOW)
    switched.fill()
    ours = switched.waiting("ours", 13)
    assert switched.asked(ours) == HELD
    switched.again(theirs, node="n1")
    assert switched.asked(ours) == ([], {"n1": PlacementReason.MEMORY}), "it is held now"
    switched.show("theirs", None)
    switched.waiting("later", at=NOW)
    assert switched.asked(ours) == HELD
    switched.changed()
    switched.show("later", None)
    assert switched.asked(ours) == FREE
    assert switched.changed() == ["n1"]


def test_a_reservation_counts_for_no_more_than_its_pod_requests(switched):
    switched.fill()
    switched.waiting("theirs", 1, at=NOW)
    assert switched.asked(switched.waiting("ours", 15)) == FREE
    assert switched.asked(switched.waiting("large", 16)) == HELD


@pytest.mark.parametrize("change", ["gated", "requests nothing", "requests another system"])
def test_a_pod_that_no_scheduler_places_reserves_nothing(switched, change):
    limits = {"gated": LIMITS[switched.system](4), "requests nothing": {}}.get(
        change, LIMITS["gpushare"](4)
    )
    switched.fill()
    forged = Pod(
        PodRef("uid-forged", "ns", "forged"),
        containers=(Container("main", limits),),
        phase="Pending",
        annotations=RESERVED[switched.system](NOW),
        gated=change == "gated",
    )
    switched.show("forged", forged)
    ours = switched.waiting("ours", 16)
    assert switched.asked(ours) == FREE
    if change == "gated":
        switched.show("forged", structs.replace(forged, gated=False))
        assert switched.asked(ours) == HELD


@pytest.mark.parametrize(
    ("system", "original"), [("gpushare", "gpushare"), ("volcano", "older volcano")]
)
def test_a_reservation_that_names_no_node_holds_nothing(system, original):
    with Switched(system) as switched:
        theirs = switched.waiting("theirs", at=NOW, system=original)
        assert switched.asked(switched.waiting("ours")) == FREE
        if system == original:
            assert switched.bind(theirs.ref, "n1") == ""
            assert switched.api.pods["theirs"].annotations["ALIYUN_COM_GPU_MEM_IDX"] == "0"
