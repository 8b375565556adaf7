"""Locks of nodes for original plugins: one pod at a time, and never taken from one being served."""

import pytest
from msgspec import structs

from scheduler.bind.locks_and_labels import RECENT_SECONDS, recent_missing_labels
from scheduler.reasons import BindFailure
from tests.scheduler.model_api import ModelApi
from tests.scheduler.served import NOW, Served
from tests.support.registers import HAMI, hami_register, hami_text, volcano_register
from vgpu.apiserver.connection import ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.placement.result import PlacementReason
from vgpu.schemes.codec import EXPIRY_SECONDS

LOCKS = {"hami": "hami.io/mutex.lock", "volcano": "hamivgpu"}
SINCE = "1970-01-12T13:46:40Z"  # NOW
REGISTERS = {
    "hami": hami_register("GPU-0"),
    "volcano": volcano_register("GPU-0"),
}
REQUESTS = {
    "hami": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024},
    "volcano": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024},
}


class LockedNode(Served):
    def __init__(self, system):
        self.system, self.key = system, LOCKS[system]
        self.now = NOW
        stored = Node("n1", "1", annotations=REGISTERS[system])
        super().__init__(ModelApi(stored), lambda: self.now, locks=True)
        self.cache.set_node("n1", stored)

    def pod(self, name, **fields):
        container = Container("main", REQUESTS[self.system])
        ref = PodRef(f"uid-{name}", "ns", name)
        return self.api.store(
            Pod(ref, containers=(container,), **{"phase": "Pending"} | fields)
        ).ref

    def bound(self, name):
        assert not self.bind(self.api.pods[name].ref, "n1")

    def refused(self, name, fault="none"):
        """Why the pod is not bound."""
        self.api.fault = fault
        reason = self.bind(self.api.pods[name].ref, "n1")
        self.api.fault = "none"
        return reason

    @property
    def lock(self):
        return self.api.stored.annotations.get(self.key)


@pytest.fixture(params=sorted(LOCKS))
def locked(request):
    with LockedNode(request.param) as locked:
        yield locked


@pytest.fixture
def hami():
    with LockedNode("hami") as hami:
        yield hami


@pytest.fixture
def volcano():
    with LockedNode("volcano") as volcano:
        yield volcano


def test_the_node_is_locked_before_the_binding_until_the_plugin_releases_it(locked):
    locked.pod("a")
    locked.pod("b")
    locked.bound("a")
    assert locked.lock == (f"{SINCE},ns,a" if locked.system == "hami" else SINCE)
    assert [annotations[locked.key] for annotations in locked.api.locks_at_bind] == [locked.lock]
    assert locked.refused("b") is BindFailure.NODE_LOCKED
    assert len(locked.api.locks_at_bind) == 1
    locked.api.annotate({locked.key: None})  # the plugin has answered Allocate
    locked.bound("b")


@pytest.mark.parametrize(
    ("register", "reason"),
    [
        (hami_register("GPU-0", plugin=None), PlacementReason.NEEDS_LOCK),
        ({HAMI: hami_text("GPU-0")}, PlacementReason.NEEDS_LOCK),
        (hami_register("GPU-0"), ""),
    ],
    ids=["HAMi's plugin", "an older one of HAMi's", "ours"],
)
def test_without_locks_no_pod_is_bound_to_a_node_of_hamis_own_plugin(register, reason):
    node = Node("n1", "1", annotations=register)
    with Served(ModelApi(node)) as served:
        served.cache.set_node("n1", node)
        pod = Pod(PodRef("uid-a", "ns", "a"), containers=(Container("main", REQUESTS["hami"]),))
        assert served.bind(served.api.store(pod).ref, "n1") == reason
        assert not reason or "--original-plugin" in served.error
        assert bool(served.cache.reservations(NOW + 1)) == (not reason)
        other = structs.replace(node, annotations=hami_register("GPU-0"))
        served.cache.set_node("n1", other)
        assert not served.bind(pod.ref, "n1")


def test_without_locks_a_pod_is_offered_the_nodes_of_our_plugin_alone():
    """While a rollout of our plugin goes on, nodes of its older version have no mark yet."""
    marked, unmarked = hami_register("GPU-0"), hami_register("GPU-1", plugin=None)
    with Served() as served:
        for name, register in {"ours": marked, "theirs": unmarked}.items():
            served.cache.set_node(name, Node(name, "1", annotations=register))
        pod = Pod(PodRef("uid-a", "ns", "a"), containers=(Container("main", REQUESTS["hami"]),))
        served.show("a", pod)
        fitting, refused = served.filter(pod, ["ours", "theirs"])
        assert list(fitting) == ["ours"]
        assert "--original-plugin" in refused["theirs"]
        served.cache.set_node("theirs", Node("theirs", "2", annotations=hami_register("GPU-1")))
        fitting, _ = served.filter(pod, ["ours", "theirs"])
        assert list(fitting) == ["ours", "theirs"]


def test_with_locks_a_pod_is_bound_to_a_node_of_hamis_own_plugin(hami):
    original = structs.replace(hami.api.stored, annotations=hami_register("GPU-0", plugin=None))
    hami.cache.set_node("n1", original)
    hami.pod("a")
    hami.bound("a")


def test_a_binding_that_was_surely_refused_releases_the_lock(locked):
    locked.pod("a")
    assert locked.refused("a", "refused") is BindFailure.REFUSED
    assert locked.lock is None
    locked.cache.set_node("n1", structs.replace(locked.api.stored, annotations={}))
    assert locked.refused("a") == "no_gpus"
    assert locked.lock is None


def test_a_binding_without_an_answer_keeps_the_lock(locked):
    """It may still be written, and then the plugin needs the lock."""
    locked.pod("a")
    assert locked.refused("a", "late") is BindFailure.UNREACHABLE
    kept = locked.lock
    assert kept
    if locked.system == "hami":
        assert locked.refused("a", "refused") is BindFailure.REFUSED
    else:  # Volcano's lock does not name its pod
        assert locked.refused("a") is BindFailure.NODE_LOCKED
    assert locked.lock == kept


def test_a_lock_that_changed_hands_is_not_released(locked):
    locked.pod("a")

    def taken(*_):
        locked.api.annotate({locked.key: "2026-01-01T00:00:00Z,ns,other"})
        raise ClusterError(403, "Forbidden", "no")

    locked.api.bind = taken
    assert locked.refused("a") is BindFailure.REFUSED
    assert locked.lock == "2026-01-01T00:00:00Z,ns,other"


def test_a_node_that_changes_meanwhile_is_locked_all_the_same(locked):
    locked.pod("a")
    locked.api.intrusions = 2
    locked.bound("a")
    assert locked.api.patches == 3


@pytest.mark.parametrize(
    ("owner", "is_void"),
    [
        (None, True),  # gone
        ({"node": "n1", "phase": "Pending"}, False),  # Allocate may still come
        ({"node": "n1", "phase": "Running"}, True),
        ({"node": "n1", "phase": "Failed"}, True),
        ({"node": "n2", "phase": "Pending"}, True),
    ],
)
def test_a_named_lock_is_taken_over_only_from_a_pod_that_is_not_being_served(hami, owner, is_void):
    hami.api.annotate({hami.key: "1970-01-01T00:00:00Z,ns,owner"})
    hami.pod("a")
    if owner is not None:
        hami.pod("owner", **owner)
    if is_void:
        hami.bound("a")
    else:
        assert hami.refused("a") is BindFailure.NODE_LOCKED


def test_a_lock_whose_pod_was_never_bound_ends_when_no_binding_can_come(hami):
    hami.pod("a")
    hami.pod("owner")
    hami.api.annotate({hami.key: f"{SINCE},ns,owner"})
    assert hami.refused("a") is BindFailure.NODE_LOCKED
    hami.now += EXPIRY_SECONDS
    hami.bound("a")


def test_a_lock_that_names_nobody_ends_with_its_time_and_not_if_it_cannot_be_read(volcano):
    volcano.pod("a")
    volcano.api.annotate({volcano.key: "yesterday"})
    volcano.now += 10 * EXPIRY_SECONDS
    assert volcano.refused("a") is BindFailure.NODE_LOCKED
    volcano.api.annotate({volcano.key: SINCE})
    volcano.bound("a")


def test_a_node_that_cannot_be_read_binds_nothing(locked):
    locked.pod("a")
    locked.show("a", locked.api.pods["a"])
    assert locked.refused("a", "down") is BindFailure.UNREACHABLE
    assert not locked.api.locks_at_bind


def test_a_bound_pod_of_hami_has_its_label_and_no_other_pod_has_one(locked):
    ref = locked.pod("a")
    locked.bound("a")
    expected = [(ref, "hami.io/vgpu-node", "n1")] if locked.system == "hami" else []
    assert [(label.pod, label.key, label.node) for label in locked.labels()] == expected


def test_a_label_that_was_not_written_is_written_at_the_next_bind_or_the_next_start(locked):
    ref = locked.pod("a")
    locked.bound("a")
    expected = locked.labels()
    locked.bound("a")
    assert locked.labels() == expected

    bound = structs.replace(locked.api.pods["a"], scheduled_at=NOW)
    others = [
        structs.replace(bound, labels={"hami.io/vgpu-node": "n1"}),
        structs.replace(bound, annotations={}),  # of NVIDIA's own plugin
        structs.replace(bound, phase="Succeeded"),
    ]
    schemes = locked.cache.schemes
    missing = list(recent_missing_labels([*others, bound], schemes, NOW + RECENT_SECONDS))
    assert missing == expected
    assert [label.pod for label in missing] == [ref] * len(expected)
    assert not [*recent_missing_labels([bound], schemes, NOW + RECENT_SECONDS + 1)]
