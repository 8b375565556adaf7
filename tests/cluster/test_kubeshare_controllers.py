"""KubeShare's controllers against a real API server and kube-scheduler, and through kills.

After every event of SharePods and pods, of all tests, the invariants of kubeshare_watch.py hold.
"""

import random
from contextlib import suppress
from signal import SIGKILL

import pytest

from kubeshare.reasons import SharePodReason
from tests.cluster.api_relay import ApiRelay
from tests.cluster.killing_proxy import KillingProxy
from tests.cluster.kubeshare_examples import Example
from tests.cluster.kubeshare_watch import ShareWatch
from tests.cluster.kubesharing import (
    EXAMPLE,
    GPUID,
    TAINT,
    labelled_pod,
    reason_of,
    share_pod,
    started,
)
from tests.kubeshare.test_controllers import EXAMPLES
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.waiting import wait_until

NODES = {"ks-1": (2,), "ks-2": (1,)} | {
    f"ks-{name.lower()}-{number}": (gpus, name)
    for name, (nodes, *_) in EXAMPLES.items()
    for number, gpus in enumerate(nodes.values())
}
"""Nodes with their GPUs, and the worked example that they are of."""


@pytest.fixture(scope="module")
def bed(api, tmp_path_factory):
    with started(api, tmp_path_factory.mktemp("kubeshare"), NODES) as bed:
        yield bed


@pytest.fixture
def namespace(bed, api_namespace):
    """A namespace whose SharePods are gone at the end, with their pods and holders."""
    yield api_namespace
    path = f"/apis/kubeshare.nthu/v1/namespaces/{api_namespace}/sharepods"
    bed.client.raw("DELETE", path)
    pods = f"/api/v1/namespaces/{api_namespace}/pods"
    for pod in bed.client.list(pods):
        if "ownerReferences" not in pod["metadata"] or not pod["spec"].get("nodeName"):
            bed.client.delete(pod, grace_seconds=0)
    wait_until(lambda: not bed.client.list(pods), "the pods are gone")
    for pod in bed.holders():
        with suppress(Refused):  # it went by itself
            bed.client.delete(pod, grace_seconds=0)


@pytest.fixture(scope="module")
def all_events(bed):
    """Every event of SharePods and pods, of all tests."""
    with ShareWatch(bed.api.client, bed.gpus) as watch:
        yield watch


@pytest.fixture
def watch(all_events):
    yield all_events
    all_events.require_unbroken()


@pytest.fixture(scope="module")
def shared(bed):
    """The controllers of most tests."""
    controllers = bed.controller("--no-leader-elect")
    yield controllers
    if controllers.daemon is not None and controllers.daemon.running:
        assert controllers.daemon.stop() == 0


@pytest.fixture
def controller(shared, watch):
    """Running controllers."""
    if shared.daemon is None or not shared.daemon.running:
        shared.start()
    return shared


@pytest.fixture
def alone(shared, watch):
    """No controllers but those that the test starts."""
    if shared.daemon is not None and shared.daemon.running:
        assert shared.daemon.stop() == 0


def test_a_share_pod_gets_its_pod_its_gpu_and_its_events(bed, controller, namespace):
    bed.create("a", namespace)
    (found,) = bed.wait_ready(namespace, "a")
    pod = bed.client.get(f"/api/v1/namespaces/{namespace}/pods/a")
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    status = found["status"]
    assert env["NVIDIA_VISIBLE_DEVICES"] == status["BoundDeviceID"]
    assert env["POD_MANAGER_PORT"] == str(status["PodManagerPort"])
    assert env["POD_NAME"] == f"{namespace}/a"
    assert pod["spec"]["nodeName"] == found["spec"]["nodeName"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
    assert status["PodObjectMeta"]["uid"] == pod["metadata"]["uid"]
    assert status["PodStatus"]["phase"] == "Running"
    (holder,) = bed.holders()
    assert holder["metadata"]["name"] == (
        f"kubeshare-vgpu-{found['spec']['nodeName']}-{found['metadata']['annotations'][GPUID]}"
    )
    bed.wait_events(found, "Scheduled", "Bound")
    ready = 'vgpu_kubeshare_sharepods{state="ready"} 1'  # as soon as they see their own write
    wait_until(lambda: ready in controller.metrics(), "it is counted")
    shown = bed.api.kubectl("get", "shp", "-n", namespace)
    assert "Running" in shown
    bed.client.delete(found)
    bed.wait_holders(0)


def test_fields_without_a_value_are_as_absent_and_what_cannot_be_read_has_an_event(
    bed, controller, namespace
):
    """As of upstream's ``test/OpportunisticPod/pod16.yaml``, whose resources have no value."""
    nothing = dict.fromkeys(("nodeName", "schedulerName", "volumes", "hostname", "affinity"))
    made = share_pod("nulls", namespace, nodeSelector={EXAMPLE: "main"}, **nothing)
    made["spec"]["containers"][0] |= {"resources": None, "env": None, "volumeMounts": None}
    kept = bed.client.create(made)
    assert kept["spec"]["containers"][0]["resources"] is None, "the API server keeps null"
    bed.wait_ready(namespace, "nulls")
    bad = bed.create("bad", namespace, containers="all")
    bed.wait_events(bad, "Malformed")
    (event,) = bed.client.events(bad)
    assert (event["type"], event["count"]) == ("Warning", 1)
    assert "`$.spec.containers`" in event["message"]
    assert 'vgpu_kubeshare_malformed_objects{kind="SharePod"} 1' in controller.metrics()
    assert controller.daemon.log().count("object cannot be read") == 1


def test_the_controllers_account_may_touch_no_other_pods(bed, namespace):
    """Every test of this file runs with this policy, and with the rights of the chart."""
    other = bed.client.create(objects.pod("other", namespace))
    label = {"kubeshare/role": "dummyPod"}  # as a user may write it, elsewhere
    alike = bed.client.create(objects.pod("alike", namespace, labels=label))

    def refusal(write, pod):
        with pytest.raises(Refused, match="only holder pods and pods of SharePods") as refused:
            write(pod)
        return refused.value.status

    def is_in_force():
        with suppress(Refused):
            bed.account.raw("DELETE", bed.client.path(other), dryRun="All")
            return False
        return True

    wait_until(is_in_force, "the policy is in force")
    assert refusal(bed.account.delete, other) == refusal(bed.account.delete, alike) == 403
    assert refusal(bed.account.create, objects.pod("new", namespace, labels=label)) == 403
    for pod in (other, alike):
        bed.client.delete(pod, grace_seconds=0)


def test_a_share_pod_that_asks_for_too_much_gets_an_event_that_names_the_field(
    bed, controller, namespace
):
    """The admission policy of the chart refuses its pod, and the condition has the reason."""
    bed.create("h", namespace, hostNetwork=True)

    def is_refused(found):
        return reason_of(found, "Ready") == SharePodReason.POD_REFUSED

    found = bed.wait_for(namespace, "h", is_refused, "refused")
    (ready,) = (each for each in found["status"]["conditions"] if each["type"] == "Ready")
    assert "may not have hostNamespaces" in ready["message"]
    assert "kubeshare.sharePods.allowed" in ready["message"]
    bed.client.delete(found)
    bed.wait_holders(0)


def test_the_worked_examples_are_placed_as_computed(bed, controller, namespace):
    """P1 to P7 side by side, one SharePod of each after another."""
    examples = [Example(bed, namespace, name) for name in EXAMPLES]
    for number in range(max(len(example.asked) for example in examples)):
        due = [example for example in examples if number < len(example.asked)]
        for example in due:
            example.create(number)
        for example in due:
            example.wait_placed(number)
    for example in examples:
        assert example.placed in example.expected, example.name
        example.wait_ready()


def test_a_node_that_no_share_pod_tolerates_keeps_nobody_waiting(bed, controller, namespace):
    found = share_pod("a", namespace)
    del found["spec"]["tolerations"]
    bed.client.create(found)
    refused = bed.wait_for(
        namespace, "a", lambda seen: reason_of(seen, "Scheduled") == "Unschedulable", "is refused"
    )
    bed.wait_events(refused, "FailedScheduling")
    bed.create("b", namespace)
    bed.wait_ready(namespace, "b")


def test_a_holder_that_is_lost_comes_back_and_its_tenants_follow_it(bed, controller, namespace):
    bed.create("b", namespace, 900)
    (found,) = bed.wait_ready(namespace, "b")
    node, before = found["spec"]["nodeName"], found["status"]["BoundDeviceID"]
    gpus = bed.gpus[node]
    if len(gpus) == 1:
        pytest.fail(f"b is on {node}: a tie goes to the first node")
    (holder,) = bed.holders()
    bed.gpus[node] = [gpu for gpu in gpus if gpu != before]  # the kubelet has another one
    try:
        bed.client.delete(holder, grace_seconds=0)
        bed.wait_for(
            namespace,
            "b",
            lambda seen: (
                seen["status"]["BoundDeviceID"] not in ("", before) and objects.ready(seen)
            ),
            "is bound to the other GPU",
        )
    finally:
        bed.gpus[node] = gpus
    bed.wait_events(found, "GpuChanged")
    pod = bed.client.get(f"/api/v1/namespaces/{namespace}/pods/b")
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] in bed.gpus[node]
    assert env["NVIDIA_VISIBLE_DEVICES"] != before


def test_a_holder_that_fails_is_created_again_and_its_tenants_stay(bed, controller, namespace):
    bed.create("f", namespace)
    (found,) = bed.wait_ready(namespace, "f")
    pod = bed.client.get(f"/api/v1/namespaces/{namespace}/pods/f")
    (failed,) = bed.holders()
    bed.client.patch(failed, {"status": {"phase": "Failed"}}, "status")

    def has_successor():
        uids = [each["metadata"]["uid"] for each in bed.holders() if objects.ready(each)]
        return uids and failed["metadata"]["uid"] not in uids

    wait_until(has_successor, "another holder runs", context=lambda: str(bed.holders()))
    bed.wait_events(failed, "HolderFailed")
    assert bed.client.find(pod), "nobody restarts"
    after = bed.find(namespace, "f")["status"]
    assert after["BoundDeviceID"] == found["status"]["BoundDeviceID"]


def test_a_share_pod_that_is_deleted_while_its_holder_waits_leaves_nothing(
    bed, controller, namespace
):
    bed.player.paused.update(bed.gpus)
    try:
        found = bed.create("d", namespace)
        bed.wait_holders(1)
        bed.client.delete(found)
        bed.wait_holders(0)
    finally:
        bed.player.paused.clear()
    assert not bed.client.list(f"/api/v1/namespaces/{namespace}/pods")


def test_an_idle_virtual_gpu_is_kept_for_the_next_share_pod_and_for_a_time(bed, alone, namespace):
    kept = bed.controller("--no-leader-elect", "--pool-keep-idle=1")
    kept.start()
    bed.create("a", namespace)
    (first,) = bed.wait_ready(namespace, "a")
    (holder,) = bed.holders()
    bed.client.delete(first)
    idle = f'vgpu_kubeshare_virtual_gpus{{node="{first["spec"]["nodeName"]}",state="idle"}} 1'
    wait_until(lambda: idle in kept.metrics(), "its virtual GPU is idle")
    bed.create("b", namespace)
    (second,) = bed.wait_ready(namespace, "b")
    assert [uid_of(each) for each in bed.holders()] == [uid_of(holder)]
    assert second["metadata"]["annotations"][GPUID] == first["metadata"]["annotations"][GPUID]
    assert kept.daemon.stop() == 0
    timed = bed.controller("--no-leader-elect", "--pool-keep-idle=1", "--pool-idle-ttl=1s")
    timed.start()
    bed.client.delete(second)
    bed.wait_holders(0)
    assert timed.daemon.stop() == 0


def test_a_share_pod_of_a_lost_node_is_placed_again_once_its_pod_is_gone(
    bed, controller, namespace
):
    bed.create("n", namespace)
    (found,) = bed.wait_ready(namespace, "n")
    lost = bed.client.get(f"/api/v1/nodes/{found['spec']['nodeName']}")
    bed.set_ready(lost, "Unknown")
    try:
        pod = bed.client.get(f"/api/v1/namespaces/{namespace}/pods/n")
        bed.client.delete(pod, grace_seconds=0)  # as the taint manager and the pod's GC do
        bed.wait_for(
            namespace,
            "n",
            lambda seen: (
                seen["spec"].get("nodeName") != lost["metadata"]["name"] and objects.ready(seen)
            ),
            "runs on another node",
        )
    finally:
        bed.set_ready(lost)
    bed.wait_events(found, "NodeLost")


def test_a_silent_node_component_keeps_share_pods_waiting_and_is_shown(bed, controller, namespace):
    """Also a holder that fails before its GPU is known is created again."""
    bed.player.silent.update(bed.gpus)
    try:
        bed.create("s", namespace)
        found = bed.wait_for(
            namespace,
            "s",
            lambda seen: reason_of(seen, "Bound") == "HolderPending",
            "waits for its holder",
        )
        node = found["spec"]["nodeName"]
        silent = f'vgpu_kubeshare_node_connected{{node="{node}"}} 0'
        wait_until(lambda: silent in controller.metrics(), "the node component is reported silent")
        assert not bed.client.list(f"/api/v1/namespaces/{namespace}/pods"), "nobody would serve it"
        (failed,) = bed.holders()
        bed.client.patch(failed, {"status": {"phase": "Failed"}}, "status")
        wait_until(
            lambda: [pod for pod in bed.holders() if uid_of(pod) != uid_of(failed)],
            "another holder",
        )
    finally:
        bed.player.silent.clear()
    bed.wait_ready(namespace, "s")
    assert silent not in controller.metrics()


def test_what_is_deleted_while_the_controllers_see_nothing_is_released(bed, alone, namespace):
    """client-go calls it a tombstone: no event of the deletion comes."""
    with ApiRelay(bed.api) as relay:
        controller = bed.controller("--no-leader-elect")
        controller.kubeconfig = relay.kubeconfig(bed.kubeconfig, bed.folder)
        controller.start()
        bed.create("gone", namespace, 900)
        (found,) = bed.wait_ready(namespace, "gone")
        relay.cut()
        bed.client.delete(found)
        pods = f"/api/v1/namespaces/{namespace}/pods"
        wait_until(lambda: not bed.client.list(pods), "its pod is gone")
        assert bed.holders(), "nobody sees it"
        relay.restore()
        bed.wait_holders(0)
        bed.create("next", namespace, 900)
        bed.wait_ready(namespace, "next")
        assert controller.daemon.stop() == 0


def uid_of(found):
    return found["metadata"]["uid"]


def native_pod(namespace, node):
    """A pod that takes a whole GPU by itself, on a node that it names."""
    pod = objects.pod("native", namespace, limits={"nvidia.com/gpu": 1}, nodeName=node)
    pod["spec"]["tolerations"] = [{"key": TAINT["key"], "operator": "Exists"}]
    return pod


def test_share_pods_whose_gpu_went_to_another_pod_move_away(bed, controller, namespace):
    """The holder is lost, and kube-scheduler counts the GPU for a pod of no sharing system."""
    node = "ks-2"
    assert len(bed.gpus[node]) == 1
    found = share_pod("m", namespace, nodeSelector={EXAMPLE: "main"})
    found["metadata"]["annotations"][GPUID] = "qwert"
    found["spec"]["nodeName"] = node  # as KubeShare-Sched writes it
    found = bed.client.create(found)
    bed.wait_ready(namespace, "m")
    (lost,) = bed.holders()
    native = bed.client.create(native_pod(namespace, node))
    bed.client.delete(lost, grace_seconds=0)
    bed.client.wait_for(native, objects.ready, "has the GPU")

    def refused():
        pods = [pod for pod in bed.holders() if uid_of(pod) != uid_of(lost)]
        waits = [pod for pod in pods if objects.condition(pod, "PodScheduled") == "False"]
        return waits[0] if waits else None

    holder = wait_until(refused, "kube-scheduler finds no GPU for the next holder")
    (condition,) = holder["status"]["conditions"]
    since = "2026-01-01T00:00:00Z"  # a minute ago, and more
    bed.client.patch(
        holder, {"status": {"conditions": [{**condition, "lastTransitionTime": since}]}}, "status"
    )
    bed.wait_for(
        namespace,
        "m",
        lambda seen: seen["spec"].get("nodeName") not in ("", None, node) and objects.ready(seen),
        "runs on another node",
    )
    bed.wait_events(found, "GpuTaken")
    assert bed.client.find(native), "the pod that has the GPU stays"
    bed.client.delete(native, grace_seconds=0)


POINTS = {
    "placed": lambda bed, namespace, found: found["spec"].get("nodeName"),
    "holder": lambda bed, namespace, found: bed.holders(),
    "bound": lambda bed, namespace, found: (found.get("status") or {}).get("BoundDeviceID"),
    "pod": lambda bed, namespace, found: bed.client.list(f"/api/v1/namespaces/{namespace}/pods"),
    "copied": lambda bed, namespace, found: (found.get("status") or {}).get("PodStatus"),
}


def test_kill_9_after_each_kind_of_write_loses_nothing(bed, alone, namespace):
    """At five points; a kill after every write is the next test."""
    controller = bed.controller("--no-leader-elect")
    for name, reached in POINTS.items():
        controller.start()
        bed.create(name, namespace, 200, 2)
        wait_until(
            lambda name=name, reached=reached: reached(bed, namespace, bed.find(namespace, name)),
            name,
        )
        controller.kill()
    controller.start()
    bed.wait_ready(namespace, *POINTS)
    pods = bed.client.list(f"/api/v1/namespaces/{namespace}/pods")
    assert sorted(pod["metadata"]["name"] for pod in pods) == sorted(POINTS)
    bed.wait_holders(1)
    assert controller.daemon.stop() == 0


KILLED_SECONDS = 300.0
"""Maximum time to wait for what controllers do that are killed meanwhile, in seconds: two programs
start in it, one after the other, beside whatever else the machine has to do."""


class Killed:
    """Controllers behind a proxy that kills them after a write, and that start again at once."""

    def __init__(self, bed, proxy):
        self.bed, self.proxy = bed, proxy
        self.controller = bed.controller("--no-leader-elect")
        self.controller.kubeconfig = proxy.kubeconfig(bed.kubeconfig, bed.folder)
        self.kills = 0

    def kill(self):
        self.controller.daemon.signal(SIGKILL)

    def go_on(self):
        """Start them if they do not run."""
        if self.controller.daemon is None or not self.controller.daemon.running:
            self.kills += self.controller.daemon is not None
            self.controller.start()
        return True

    def wait(self, condition, what):
        wait_until(
            lambda: self.go_on() and condition(),
            what,
            seconds=KILLED_SECONDS,
            failures=(AssertionError,),
            context=self.state,
        )

    def state(self):
        """What a wait in vain is to be explained by."""
        share_pods = self.bed.client.list("/apis/kubeshare.nthu/v1/sharepods")
        log = self.controller.daemon.log(30)
        return f"{self.kills} kills\n{share_pods}\n{self.bed.holders()}\n{log}"


def way_of_three_share_pods(bed, killed, namespace):
    """Two share a GPU and one has another; one ends, one is deleted. Returns what is left."""
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def find(name):
        return bed.find(namespace, name)

    bed.create("a", namespace, 500)
    bed.create("b", namespace, 500, restartPolicy="Never")
    bed.create("c", namespace, 700)
    killed.wait(lambda: all(objects.ready(find(name)) for name in "abc"), "all run")
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in bed.client.list(pods)}
    ended = {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}
    bed.client.patch(bed.client.get(f"{pods}/b"), {"status": ended}, "status")
    killed.wait(lambda: reason_of(find("b"), "Ready") == "Finished", "b is finished")
    bed.client.delete(find("c"))
    killed.wait(lambda: len(bed.holders()) == 1, "c's holder goes")
    killed.wait(lambda: len(bed.client.list(pods)) == 2, "c's pod goes")
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in bed.client.list(pods)}
    assert after == {name: before[name] for name in "ab"}, "a pod was created twice"
    return {
        name: (
            bool(found["status"]["BoundDeviceID"]),
            found["status"]["PodStatus"]["phase"],
            sorted((each["type"], each["reason"]) for each in found["status"]["conditions"]),
        )
        for name in "ab"
        for found in [find(name)]
    }


@pytest.mark.thorough("schedulers")
def test_kill_9_after_every_write_leads_to_the_same_objects(bed, alone, figure):
    """The API server has taken the write, and the controllers never learn of it."""
    outcomes, number = [], 0
    with KillingProxy(bed.api) as proxy:
        killed = Killed(bed, proxy)
        proxy.kill = killed.kill
        while killed.kills == number:  # it was killed once in each way but the first
            number = len(outcomes)
            proxy.kill_after = number
            with bed.api.namespace() as namespace:
                killed.go_on()
                outcomes.append(way_of_three_share_pods(bed, killed, namespace))
                share_pods = f"/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods"
                bed.client.raw("DELETE", share_pods)
                killed.wait(lambda: not bed.holders(), "no holder is left")
                pods = f"/api/v1/namespaces/{namespace}/pods"
                killed.wait(lambda pods=pods: not bed.client.list(pods), "no pod is left")
        assert outcomes == [outcomes[0]] * len(outcomes)
        assert killed.kills > 15
        figure(f"KubeShare's controllers: killed after each of {killed.kills} writes")
        assert killed.controller.daemon.stop() == 0


def test_fifty_share_pods_come_and_go(bed, controller, watch, namespace):
    """More than fit; each that ends lets another one in, and nothing is left at the end."""
    chance, seen_before = random.Random(21), watch.events
    names = [f"p{number}" for number in range(50)]
    for name in names:
        bed.create(name, namespace, chance.choice((50, 200, 400)), chance.choice((1, 2)))
    for name in names:  # the controllers' writes meet newer versions, and begin again
        bed.client.patch(bed.find(namespace, name), {"metadata": {"labels": {"touched": "yes"}}})

    def share_pods():
        return bed.client.list(f"/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods")

    def is_decided(found):
        return objects.ready(found) or reason_of(found, "Scheduled") == "Unschedulable"

    wait_until(lambda: all(map(is_decided, share_pods())), "all are Ready or refused")
    waiting = [each["metadata"]["name"] for each in share_pods() if not objects.ready(each)]
    running = [each for each in share_pods() if objects.ready(each)]
    assert waiting, "they fit by chance: ask for more"
    for each in running[: len(running) // 2]:
        bed.client.delete(each)
    before = len(waiting)
    wait_until(
        lambda: sum(not objects.ready(each) for each in share_pods()) < before,
        "a waiting one has room",
    )
    for each in share_pods():
        with suppress(Refused):  # deleted before, and on its way
            bed.client.delete(each)
    bed.wait_holders(0)
    watch.require_unbroken()
    # each that ran was placed, was bound and got a pod; how many more had room is chance
    assert watch.events >= seen_before + 3 * len(running) > seen_before


def test_pods_with_labels_are_bound_and_never_created_again(bed, alone, namespace):
    """KubeShare 2's, beside a SharePod: one Binding each, through a kill."""
    controller = bed.controller("--no-leader-elect", "--labelled-pods")
    controller.start()
    bed.create("s", namespace, 500)
    bed.wait_ready(namespace, "s")
    selector = {EXAMPLE: "main"}
    made = [
        bed.client.create(labelled_pod(name, namespace, 500, nodeSelector=selector))
        for name in "abc"
    ]
    wait_until(lambda: len(bed.holders()) == 2, "the holder of the second GPU")
    controller.kill()
    controller.start()
    pods = [bed.client.wait_for(pod, objects.ready, "runs") for pod in made]
    assert [pod["metadata"]["uid"] for pod in pods] == [pod["metadata"]["uid"] for pod in made]
    shares = [pod["metadata"]["annotations"] for pod in pods]
    status = bed.find(namespace, "s")["status"]
    uuids = sorted([status["BoundDeviceID"], *(each["sharedgpu/gpu_uuid"] for each in shares)])
    assert uuids[0] == uuids[1] != uuids[2] == uuids[3], "two halves a GPU"
    ports = {
        status["PodManagerPort"],
        *(int(each["sharedgpu/gpu_manager_port"]) for each in shares),
    }
    assert len(ports) == 4
    for pod, share in zip(pods, shares, strict=True):
        node = pod["spec"]["nodeName"]
        assert share["vgpu.dev/virtual-gpu"].startswith(f"{node}/")
        assert share["sharedgpu/gpu_uuid"] in bed.gpus[node]
    blind = labelled_pod("blind", namespace, 100)
    blind["spec"]["containers"][0]["env"] = []
    big = labelled_pod("big", namespace, 1000, gib=17, nodeSelector=selector)
    for pod, reason in ((blind, "InvalidRequest"), (big, "Unschedulable")):
        refused = bed.client.wait_for(
            bed.client.create(pod),
            lambda seen, reason=reason: reason_of(seen, "PodScheduled") == reason,
            f"is refused: {reason}",
        )
        assert not refused["spec"].get("nodeName")
    bed.wait_events(refused, "FailedScheduling")
    for pod in (*pods, refused):
        bed.client.delete(pod, grace_seconds=0)
    wait_until(lambda: len(bed.holders()) == 1, "the other holder goes with its last pod")
    assert controller.daemon.stop() == 0


def test_another_process_goes_on_when_the_leader_is_killed(bed, alone, namespace):
    first, second = bed.controller(), bed.controller()
    first.start()
    wait_until(lambda: "vgpu_kubeshare_leader 1" in first.metrics(), "the first one leads")
    second.start()
    bed.create("a", namespace)
    bed.wait_ready(namespace, "a")
    first.kill()
    bed.create("b", namespace)
    bed.wait_ready(namespace, "b")
    assert "vgpu_kubeshare_leader 1" in second.metrics()
    assert second.daemon.stop() == 0
