"""What is written to the API server: what lags, once, whatever fails, and in which order."""

import logging
import threading

import pytest
from msgspec.structs import replace

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.adapters.volcano import HandshakeMode, VolcanoAdapter
from deviceplugin.apiserver.desired_state import capacity_patch
from deviceplugin.apiserver.object_writers import AGAIN_SECONDS as ASKED_AGAIN_SECONDS
from deviceplugin.apiserver.object_writers import NODE_SECONDS, OWNER_SECONDS
from deviceplugin.apiserver.status_manager import StatusManager
from deviceplugin.apiserver.writes import AGAIN_SECONDS, EventReason, note
from deviceplugin.failpoints import Step
from tests.support.plugin_bench import Bench
from tests.support.plugin_pods import NODE, NOW, A, B, container, gpu, node, pod
from tests.support.waiting import wait_until
from vgpu.kube.events import NoteType
from vgpu.model.names import PodRef
from vgpu.model.objects import ContainerState, MalformedObject, Status
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.volcano.codec import HAMI, Volcano

VOLCANO = VolcanoAdapter(Volcano())
TO_ALLOCATE, BIND_PHASE = "volcano.sh/devices-to-allocate", "volcano.sh/bind-phase"
REGISTER, HANDSHAKE = "volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake"
LOCK = "hamivgpu"
SEGMENT = f"{A},NVIDIA,128,10:"


def volcano_pod(name="train", containers=("main",)):
    """As the scheduler bound it, at the moment when it took the lock."""
    text = ";".join([SEGMENT] * len(containers))
    annotations = {
        "volcano.sh/vgpu-ids-new": text,
        TO_ALLOCATE: text,
        BIND_PHASE: "allocating",
        "volcano.sh/bind-time": str(int(NOW)),
    }
    asking = (container(each, {"volcano.sh/vgpu-number": 1}) for each in containers)
    return pod(annotations, *asking, name=name)


def gpushare_pod(name="train"):
    return pod({}, container("main", {"aliyun.com/gpu-mem": 4}), name=name)


@pytest.fixture
def bench():
    """Of a node whose marks are all written."""
    made = Bench(VOLCANO, [gpu(A, 0), gpu(B, 1)])
    made.round()
    made.watch()
    made.server.calls.clear()
    return made


@pytest.fixture
def gpushare():
    return Bench(GpushareAdapter(), [gpu(A, 0)])


def lock(bench):
    """The scheduler locks the node for a pod."""
    bench.server.node = bench.server.annotated(bench.server.node, {LOCK: "2026-09-21T14:13:20Z"})
    bench.shown_node = bench.server.node


# ---------------------------------------------------------------- pods


def test_a_pod_is_reported_once_even_while_the_watch_does_not_show_it(bench):
    bench.add(volcano_pod(), ["main"])
    for _ in range(3):
        bench.round()
    assert bench.count("patch_pod") == 1
    assert bench.annotations_of("train")[BIND_PHASE] == "success"
    assert bench.steps == [Step.POD_ANNOTATED]
    bench.watch()
    bench.round()
    assert bench.count("patch_pod") == 1


def test_containers_that_are_bound_one_after_another_are_reported_so(bench):
    both = volcano_pod(containers=("x", "y"))
    bench.add(both, ["x"])
    bench.round()
    assert bench.annotations_of("train")[TO_ALLOCATE] == f";{SEGMENT}"
    bench.bind(both, ["x", "y"])
    bench.round()  # upon our own write, which the watch does not show yet
    assert bench.annotations_of("train")[TO_ALLOCATE] == ";"
    assert bench.status_manager.counts()["pod", "told"] == 2
    halfway = replace(
        both, resource_version=str(int(bench.server.objects["train"].resource_version))
    )
    bench.shown_pods[both.kubelet_uid] = halfway
    bench.watch()
    bench.round()
    assert bench.count("patch_pod") == 2


def test_a_pod_that_has_changed_is_reported_in_its_new_state_as_soon_as_that_is_seen(bench):
    bench.add(volcano_pod(), ["main"])
    bench.server.objects["train"] = bench.server.annotated(
        bench.server.objects["train"], {"x": "y"}
    )
    bench.round()
    assert bench.status_manager.counts()["pod", "moved_on"] == 1
    bench.watch()
    bench.round()  # at once: it is another version
    assert bench.annotations_of("train")[BIND_PHASE] == "success"
    assert bench.annotations_of("train")["x"] == "y"


def test_a_pod_that_cannot_be_reported_holds_up_no_other(bench):
    bench.add(volcano_pod("bad"), ["main"])
    bench.add(volcano_pod("good"), ["main"])
    bench.server.refuse("patch_pod", 500, "bad", times=99)
    assert bench.round() <= NODE_SECONDS
    assert bench.annotations_of("good")[BIND_PHASE] == "success"
    assert bench.annotations_of("bad")[BIND_PHASE] == "allocating"
    for _ in range(20):
        bench.round(after=60)
    tried = [name for call, name in bench.server.calls if call == "patch_pod"]
    assert tried.count("good") == 1
    assert 5 < tried.count("bad") <= 21
    bench.server.refusals.clear()
    bench.round(after=60)
    assert bench.annotations_of("bad")[BIND_PHASE] == "success"


def test_while_nobody_answers_one_is_asked_and_what_failed_comes_last(bench):
    bench.add(volcano_pod("a"), ["main"])
    bench.add(volcano_pod("b"), ["main"])
    bench.server.refuse("patch_pod", 0, "a")
    bench.round()
    assert bench.server.calls == [("patch_pod", "a")]  # the next would wait for its time-out too
    bench.round(after=60)
    assert bench.server.calls[1:3] == [("patch_pod", "b"), ("patch_pod", "a")]


def test_an_answer_that_is_not_kubernetes_is_a_failure_like_others(bench):
    bench.add(volcano_pod(), ["main"])
    bench.server.refuse("patch_pod", SourceError(Reason.MALFORMED, "server", "html"))
    bench.round()
    bench.round(after=60)
    assert bench.status_manager.counts()["pod", "failed"] == 1
    assert bench.annotations_of("train")[BIND_PHASE] == "success"


def test_a_defect_with_one_pod_does_not_stop_the_thread(bench):
    bench.add(volcano_pod("a"), ["main"])
    bench.add(volcano_pod("b"), ["main"])
    bench.server.refuse("patch_pod", RuntimeError("a defect"), "a")
    bench.round()
    assert bench.annotations_of("b")[BIND_PHASE] == "success"
    assert bench.status_manager.counts()["pod", "failed"] == 1


@pytest.mark.parametrize("versions", ["the same version", "a new version"])
def test_a_server_that_takes_an_annotation_and_drops_it_is_asked_ever_more_seldom(bench, versions):
    """An admission webhook that puts the pod's annotations back."""

    def dropped(ref, version, annotations):
        there = bench.server.objects[ref.name]
        bench.server.calls.append(("patch_pod", ref.name))
        if versions == "a new version":
            bench.server.objects[ref.name] = bench.server.annotated(there, {})
            bench.watch()
        return bench.server.objects[ref.name]

    bench.server.patch_pod = dropped
    bench.add(volcano_pod("bad"), ["main"], served=True)
    lock(bench)
    for _ in range(50):
        assert bench.round() > 0
    assert bench.count("patch_pod") == 1
    assert bench.status_manager.counts() == {("node", "told"): 1, ("pod", "failed"): 1}
    for _ in range(20):
        bench.round(after=60)
    assert 5 < bench.count("patch_pod") <= 21
    assert LOCK in bench.server.node.annotations
    assert bench.steps == []


def test_a_pod_that_is_gone_is_left_to_the_watch(bench):
    bench.add(volcano_pod(), ["main"])
    bench.server.objects.clear()
    bench.round()
    assert bench.status_manager.counts()["pod", "gone"] == 1
    bench.watch()
    bench.round(after=60)
    assert bench.count("patch_pod") == 1


def test_a_pod_that_is_finally_refused_is_marked_as_failed(bench):
    bench.add(volcano_pod(), refused=True)
    bench.round()
    bench.watch()
    bench.round(after=60)
    assert bench.annotations_of("train")[BIND_PHASE] == "failed"
    assert bench.annotations_of("train")[TO_ALLOCATE] == ""
    assert bench.count("patch_pod") == 1


def test_before_it_is_known_who_holds_what_nothing_is_reported():
    status_manager = StatusManager(None, VOLCANO, lambda: None)
    assert status_manager.round() > 0


# ---------------------------------------------------------------- the lock


def test_the_lock_is_released_after_its_owner_was_reported(bench):
    bench.add(volcano_pod(), ["main"], served=True)
    lock(bench)
    bench.round()
    assert [call for call, _ in bench.server.calls] == ["patch_pod", "patch_node"]
    assert bench.steps == [Step.POD_ANNOTATED, Step.LOCK_RELEASED]
    assert LOCK not in bench.server.node.annotations


def test_the_lock_stays_as_long_as_its_owner_is_not_reported(bench):
    bench.add(volcano_pod(), ["main"], served=True)
    lock(bench)
    bench.server.refuse("patch_pod", 500)
    bench.round()
    assert LOCK in bench.server.node.annotations
    bench.round(after=60)
    bench.round()
    assert LOCK not in bench.server.node.annotations
    assert bench.steps == [Step.POD_ANNOTATED, Step.LOCK_RELEASED]


def test_the_lock_of_a_pod_that_is_not_served_in_full_stays(bench):
    bench.add(volcano_pod(containers=("x", "y")), ["x"])
    lock(bench)
    bench.round()
    assert LOCK in bench.server.node.annotations
    assert Step.LOCK_RELEASED not in bench.steps


def test_no_pod_takes_two_locks_with_it(bench):
    """The scheduler has locked the node for the next pod, within the same second."""
    bench.add(volcano_pod(), ["main"], served=True)
    lock(bench)
    bench.round()
    bench.watch()
    lock(bench)
    bench.round(after=60)
    assert LOCK in bench.server.node.annotations


@pytest.mark.parametrize("stamp", [str(int(NOW) + 60), None], ids=["later", "gone"])
def test_a_pod_whose_lock_has_gone_does_not_hold_the_next_one(bench, stamp):
    """Whoever may annotate the pod has written another bind time, or none."""
    bench.add(volcano_pod("a"), ["main"], served=True)
    lock(bench)
    bench.round()
    restamped = {"volcano.sh/bind-time": stamp}
    bench.server.objects["a"] = bench.server.annotated(bench.server.objects["a"], restamped)
    bench.watch()
    lock(bench)
    bench.add(volcano_pod("b"), ["main"], served=True)
    bench.round(after=60)
    assert LOCK not in bench.server.node.annotations


def test_a_lock_that_was_taken_again_meanwhile_is_not_released(bench):
    bench.add(volcano_pod(), ["main"], served=True)
    lock(bench)
    taken = {LOCK: "2026-09-21T14:20:00Z"}
    bench.server.node = bench.server.annotated(bench.server.node, taken)
    bench.round()
    assert bench.server.node.annotations[LOCK] == taken[LOCK]
    bench.watch()
    bench.round()
    assert bench.server.node.annotations[LOCK] == taken[LOCK]
    assert bench.status_manager.counts() == {
        ("node", "told"): 1,
        ("pod", "told"): 1,
        ("lock", "moved_on"): 1,
    }


# ---------------------------------------------------------------- the lock of a named owner

MUTEX = "hami.io/mutex.lock"
TAKEN = "2026-09-21T14:13:20Z"
ELSEWHERE = "gpu-2"


def hami_pod(name="train", **fields):
    text = f"{SEGMENT};"
    annotations = {
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": str(int(NOW)),
    }
    return pod(annotations, container("main", {"nvidia.com/gpu": 1}), name=name, **fields)


@pytest.fixture
def hami():
    """HAMi's node, which is locked for team ml's pod train."""
    made = Bench(VolcanoAdapter(Volcano(HAMI)), [gpu(A, 0), gpu(B, 1)])
    made.round()
    lock_for(made, "train")
    made.server.calls.clear()
    return made


def lock_for(bench, name):
    text = {MUTEX: f"{TAKEN},ml,{name}"}
    bench.server.node = bench.server.annotated(bench.server.node, text)
    bench.shown_node = bench.server.node


def show(bench, made):
    """A pod that is not admitted; the watch shows it."""
    bench.server.objects[made.ref.name] = bench.shown_pods[made.kubelet_uid] = made


def is_locked(bench):
    return MUTEX in bench.server.node.annotations


def test_the_lock_of_an_owner_that_has_failed_goes_at_once(hami):
    """The kubelet has refused it, or the plugin was not there when it asked."""
    show(hami, hami_pod(phase="Failed"))
    hami.round()
    assert not is_locked(hami)
    assert [call for call, _ in hami.server.calls] == ["pods", "patch_node"]
    assert hami.steps == [Step.LOCK_RELEASED]


@pytest.mark.parametrize(
    "gone",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed", "deleted_at": NOW},
        {"deleted_at": NOW, "statuses": (Status("main", ContainerState.TERMINATED),)},
    ],
)
def test_whoever_is_over_holds_no_lock(hami, gone):
    show(hami, hami_pod(**gone))
    hami.round()
    assert not is_locked(hami)


def test_the_lock_of_an_owner_that_is_gone_goes_after_a_moment(hami):
    """It may be one that is about to be bound: its scheduler takes the lock first."""
    hami.round()
    assert hami.server.calls == []
    assert hami.round(after=OWNER_SECONDS - 1) <= 1
    assert is_locked(hami)
    hami.round(after=1)
    assert not is_locked(hami)
    assert hami.count("pods") == 1


@pytest.mark.parametrize("name", ["bound elsewhere", "about to be bound", "being deleted"])
def test_the_lock_of_an_owner_that_is_not_here_goes_if_it_cannot_come(hami, name):
    owner = hami_pod(
        **{"deleted_at": NOW} if name == "being deleted" else {},
    )
    node = ELSEWHERE if name == "bound elsewhere" else ""
    hami.server.objects["train"] = replace(owner, node=node)
    for _ in range(3):
        hami.round(after=OWNER_SECONDS)
    assert is_locked(hami) == (name == "about to be bound")
    if is_locked(hami):  # it is asked for, and not at every round
        assert hami.count("pods") == 1
        hami.round(after=ASKED_AGAIN_SECONDS)
        assert hami.count("pods") == 2


def test_the_lock_of_a_dead_pods_successor_stays(hami):
    """A StatefulSet's next pod has the same name; the watch does not show it yet."""
    before = hami_pod(phase="Failed", uid="old")
    show(hami, before)
    hami.server.objects["train"] = replace(hami_pod(uid="new"), node="")
    hami.round()
    assert is_locked(hami)
    assert hami.count("pods") == 1
    hami.watch()
    hami.round(after=NODE_SECONDS)
    assert is_locked(hami)


def test_the_lock_of_an_owner_that_may_still_be_asked_for_stays(hami):
    show(hami, hami_pod())
    for _ in range(3):
        hami.round(after=60)
    assert is_locked(hami)
    assert hami.count("pods") == 0


@pytest.mark.parametrize(("where", "stays"), [("", True), (None, True), (ELSEWHERE, False)])
def test_the_lock_of_an_owner_that_cannot_be_read_stays_if_it_may_come(hami, where, stays):
    """It is there: only what it is like is not known."""
    ref = PodRef("uid-1", "ml", "train")
    hami.server.malformed.append(MalformedObject("Pod", ref, "phase: 7", where))
    for _ in range(3):
        hami.round(after=OWNER_SECONDS)
    assert is_locked(hami) is stays


def test_a_lock_that_was_taken_again_while_its_owner_was_looked_for_stays(hami):
    show(hami, hami_pod(phase="Failed"))
    taken = {MUTEX: "2026-09-21T14:20:00Z,ml,next"}
    hami.server.node = hami.server.annotated(hami.server.node, taken)
    hami.round()
    assert hami.server.node.annotations[MUTEX] == taken[MUTEX]


def test_while_the_owner_cannot_be_looked_for_its_lock_stays(hami):
    show(hami, hami_pod(phase="Failed"))
    hami.server.refuse("pods", 500)
    hami.round()
    assert is_locked(hami)
    assert hami.status_manager.counts()["lock", "failed"] == 1
    hami.round(after=60)
    assert not is_locked(hami)


def test_a_lock_that_names_nobody_is_not_taken_for_a_dead_pods(bench):
    show(bench, replace(volcano_pod(), phase="Failed"))
    lock(bench)
    for _ in range(3):
        bench.round(after=60)
    assert LOCK in bench.server.node.annotations
    assert bench.count("pods") == 0


# ---------------------------------------------------------------- the node


def test_the_node_is_reported_at_start_and_when_a_gpus_health_changes(bench):
    assert bench.server.node.annotations[REGISTER].count("true") == 2
    bench.round()
    assert bench.server.calls == []
    bench.devices = (bench.devices[0], replace(bench.devices[1], healthy=False))
    bench.round()
    assert bench.server.node.annotations[REGISTER].count("true") == 1


def test_who_writes_the_node_against_us_is_answered_every_half_minute_only(bench):
    def overwrite():
        bench.server.node = bench.server.annotated(bench.server.node, {REGISTER: "theirs"})
        bench.watch()

    overwrite()
    assert bench.round(after=10) == pytest.approx(NODE_SECONDS - 10)
    assert bench.count("patch_node") == 0
    bench.round(after=20)
    assert bench.count("patch_node") == 1
    overwrite()
    bench.round()
    assert bench.count("patch_node") == 1


def test_a_handshake_is_answered_in_time_and_once(bench):
    asked = {HANDSHAKE: "Requesting_2026.09.21 14:13:25"}
    bench.server.node = bench.server.annotated(bench.server.node, asked)
    bench.watch()
    seconds = bench.round(after=5)
    assert seconds < 60
    bench.round(after=seconds)
    bench.watch()
    assert bench.server.node.annotations[HANDSHAKE].startswith("Reported")
    for _ in range(5):
        bench.round(after=60)
    assert bench.count("patch_node") == 1


def test_signs_of_life_come_every_half_minute_where_they_are_wanted():
    bench = Bench(replace(VOLCANO, handshake=HandshakeMode.ON), [gpu(A)])
    for _ in range(4):
        seconds = bench.round()
        bench.watch()
        bench.round(after=seconds)
        bench.watch()
    assert bench.count("patch_node") == 5


def test_a_node_whose_gpus_are_not_known_is_not_reported_to_have_none():
    bench = Bench(VOLCANO, [])
    bench.round()
    assert bench.server.calls == []


def test_gpus_are_counted_in_the_nodes_status(gpushare):
    gpushare.round()
    assert gpushare.server.node.capacity == {"aliyun.com/gpu-count": 1}
    assert gpushare.server.node.allocatable == {"aliyun.com/gpu-count": 1}
    gpushare.watch()
    gpushare.round(after=60)
    assert gpushare.count("patch_node_status") == 1
    assert gpushare.count("patch_node") == 0


def test_a_resources_name_is_one_step_of_a_patchs_path():
    patch = capacity_patch(node(), {"a.b/c~d": 3})
    assert patch[0] == {"op": "test", "path": "/metadata/uid", "value": "uid-of-node"}
    assert [each["path"] for each in patch[1:]] == [
        "/status/capacity/a.b~1c~0d",
        "/status/allocatable/a.b~1c~0d",
    ]
    assert {each["value"] for each in patch[1:]} == {"3"}


CONFIG = ("kube-system", f"unhealthy-gpu-{NODE}")


def ail(bench, *, healthy):
    bench.devices = tuple(replace(each, healthy=healthy) for each in bench.devices)


def test_healthy_gpus_need_no_configmap_and_it_is_read_once(gpushare):
    for _ in range(3):
        gpushare.round(after=60)
    assert gpushare.server.config_maps == {}
    assert gpushare.count("versioned_config_map") == 1


def test_unhealthy_gpus_are_in_the_configmap_until_they_recover(gpushare):
    gpushare.server.config_maps[CONFIG] = ({"note": "by hand"}, "5")
    ail(gpushare, healthy=False)
    gpushare.round()
    assert gpushare.server.config_maps[CONFIG][0] == {"note": "by hand", "gpus": "0"}
    ail(gpushare, healthy=True)
    gpushare.round()
    assert gpushare.server.config_maps[CONFIG][0] == {"note": "by hand"}
    assert gpushare.status_manager.counts()["configmap", "told"] == 2


def test_a_configmap_that_somebody_changed_is_read_again(gpushare):
    gpushare.round()
    gpushare.server.config_maps[CONFIG] = ({"gpus": "0,7"}, "5")
    ail(gpushare, healthy=False)
    gpushare.round()
    assert gpushare.status_manager.counts()["configmap", "moved_on"] == 1
    gpushare.round(after=60)
    assert gpushare.server.config_maps[CONFIG][0] == {"gpus": "0"}


def test_a_configmap_that_we_may_not_use_is_no_failure_and_logged_once(gpushare, caplog):
    """The right to it is the operator's choice, and the chart gives none by itself."""
    caplog.set_level(logging.INFO, "deviceplugin")
    gpushare.server.refuse("versioned_config_map", 403, times=3)
    ail(gpushare, healthy=False)
    hours = 3
    for _ in range(int(hours * 3600 / NODE_SECONDS)):
        gpushare.round(after=NODE_SECONDS)
    assert gpushare.count("versioned_config_map") == hours
    assert ("configmap", "failed") not in gpushare.status_manager.counts()
    assert len([each for each in caplog.records if "not written" in each.message]) == 1
    gpushare.round(after=NODE_SECONDS)  # it has been written by now
    assert gpushare.server.config_maps[CONFIG][0] == {"gpus": "0"}
    gpushare.server.refuse("write_config_map", 403)
    ail(gpushare, healthy=True)
    gpushare.round(after=NODE_SECONDS)  # and taken away
    assert len([each for each in caplog.records if "not written" in each.message]) == 2


# ---------------------------------------------------------------- events


def test_the_same_message_is_logged_once_in_five_minutes(bench):
    train = volcano_pod()
    for after in (0, 1, AGAIN_SECONDS - 2, 2):
        bench.unix += after
        bench.status_manager.record_event(train, EventReason.REFUSED, "no room")
        bench.status_manager.record_event(train, EventReason.REFUSED, "no GPU")
        bench.round()
        bench.round()
    assert [each.message for each in bench.server.events] == ["no room", "no GPU"] * 2
    assert {each.component for each in bench.server.events} == {"vgpu-device-plugin"}
    assert {each.type for each in bench.server.events} == {NoteType.WARNING}


def test_events_are_about_pods_and_nodes_as_kubectl_looks_for_them():
    assert note(node(), EventReason.NOT_REGISTERED, "x", NOW).uid == NODE
    assert note(volcano_pod(), EventReason.REFUSED, "x", NOW).uid == "uid-of-train"
    about = note(PodRef("u", "ml", "p"), EventReason.CONFLICT, "x", NOW)
    assert (about.kind, about.namespace, about.name, about.reason) == (
        "Pod",
        "ml",
        "p",
        "VgpuConflict",
    )


@pytest.mark.parametrize(("status", "messages"), [(0, 1), (503, 1), (403, 0), (404, 0)])
def test_an_event_waits_for_a_server_that_is_busy_and_no_refusal_is_argued_with(
    bench, status, messages
):
    bench.status_manager.record_event(volcano_pod(), EventReason.REFUSED, "no room")
    bench.server.refuse("write_event", status)
    bench.round()
    bench.round(after=60)
    assert len(bench.server.events) == messages


# ---------------------------------------------------------------- the thread


def test_the_thread_reports_when_it_is_woken_and_stops():
    earlier = set(threading.enumerate())
    bench = Bench(VOLCANO, [gpu(A)])
    reported = threading.Event()
    bench.status_manager = StatusManager(
        bench.server, VOLCANO, bench.look, lambda _: reported.set()
    )
    bench.status_manager.start()
    try:
        bench.add(volcano_pod(), ["main"])
        bench.status_manager.wake()
        wait_until(reported.is_set, "the pod is reported")
        assert bench.annotations_of("train")[BIND_PHASE] == "success"
    finally:
        bench.status_manager.stop()
    calls = len(bench.server.calls)
    bench.status_manager.wake()
    assert len(bench.server.calls) == calls
    assert not any(
        thread.name == "status-manager" for thread in set(threading.enumerate()) - earlier
    )
