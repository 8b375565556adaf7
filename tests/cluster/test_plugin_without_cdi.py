"""Pods of each system on a node whose containerd does not know CDI: the answer is a guess.

What a guess got wrong never runs: it is refused at the start, and the reconciler evicts it.
"""

import pytest

from tests.cluster.plugin_crossing import let_it_see, promised_at
from tests.cluster.plugin_kinds import KINDS, Ask
from tests.cluster.plugin_scheduler import NAME, Scheduler, deaf
from tests.cluster.plugin_view import OVERRIDE, Sight, read_inside
from tests.cluster.reconciling import AT_ONCE, CLUSTER_RIGHTS, Command, forget_state, with_rights
from tests.support.bed import objects
from tests.support.bed.node import Node
from tests.support.waiting import wait_until
from vgpu.model.plugin_messages import CHECK_FAILED, CROSSED

GPUS = 3
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def only(*names):
    return pytest.mark.parametrize("kind", names, indirect=True)


@pytest.fixture(scope="module")
def old_node(control_plane, images):
    with Node(control_plane, images, containerd="1.6") as node:
        yield node


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def plugin(kind, old_node, tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    flags = ["--no-cdi", "--prestart-timeout=2s"]
    with kind.plugin(old_node, folder, *flags, gpus=GPUS) as plugin:
        kind.wait_served(plugin)
        yield plugin


@pytest.fixture(scope="module")
def space(control_plane, plugin):
    """A namespace for pods that stay."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture(scope="module")
def witness(kind, plugin, space):
    """A pod that is served already."""
    return plugin.start(kind.pod("witness", space, plugin, {"main": Ask(0, 1)}))


@pytest.fixture(scope="module")
def plain(old_node, control_plane):
    client = control_plane.client
    with control_plane.namespace() as namespace:
        pod = client.create(objects.pod("plain", namespace, nodeName=old_node.name))
        return Sight.of(old_node, client.wait_for(pod, objects.ready, "Ready"))


@pytest.fixture(scope="module")
def reconciler(control_plane):
    return with_rights(control_plane, *CLUSTER_RIGHTS)


@pytest.fixture
def command(control_plane, reconciler, namespace, tmp_path):
    yield Command(reconciler, tmp_path, AT_ONCE | {"namespaces": [namespace]})
    forget_state(control_plane.client)


def check(kind, plugin, plain, pod, ask):
    """The container has what its pod was promised; limits that come late are in a file."""
    seen = Sight.of(plugin.node, pod)
    own = seen.beyond(plain)
    uid = pod["metadata"]["uid"]
    bound = [
        one for one in plugin.log_lines() if one["msg"] == "container bound" and one["uid"] == uid
    ]
    name = bound[-1]["share"]
    given = kind.given(plugin, pod, "main", ask, name)
    env, mounts = dict(given.env), dict(given.mounts)
    if kind.late:
        gpu = {VISIBLE: env.pop(VISIBLE)}
        lines = read_inside(plugin.node, seen.pid, OVERRIDE).splitlines()
        assert lines == [f"{key}={text}" for key, text in sorted(env.items())]
        env, mounts[OVERRIDE] = gpu, (f"/run/vgpu/late/{kind.scheme}/{name}/overrideEnv", "ro")
    assert (own.env, own.mounts, own.devices) == (env, mounts, given.devices)
    assert not seen.repeated_variables


@pytest.fixture
def crossing(kind, plugin, witness):
    return kind, plugin, witness


def message(pod):
    (status,) = pod["status"].get("containerStatuses") or [{}]
    return status.get("state", {}).get("waiting", {}).get("message", "")


# ---------------------------------------------------------------- right guesses


def test_a_container_sees_exactly_what_it_was_promised(kind, plugin, plain, space):
    ask = Ask(1, 3)
    pod = plugin.start(kind.pod("plain", space, plugin, {"main": ask}))
    check(kind, plugin, plain, pod, ask)


@only("volcano")
def test_a_container_that_dies_is_started_again_with_the_same(kind, plugin, plain, space):
    ask = Ask(1, 3)
    pod = plugin.start(kind.pod("p", space, plugin, {"main": ask}))
    plugin.node.run(["kill", "-KILL", str(Sight.of(plugin.node, pod).pid)])

    def again(pod):
        return objects.ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"] == 1

    check(kind, plugin, plain, plugin.client.wait_for(pod, again, "started again"), ask)


# ---------------------------------------------------------------- wrong ones


@only("volcano", "hami")
def test_pods_of_one_gpu_that_cross_have_their_own_limits_all_the_same(
    kind, plugin, plain, space, witness
):
    asks = {"first": Ask(1, 2), "second": Ask(1, 5)}
    pods = {
        name: promised_at(kind, kind.pod(name, space, plugin, {"main": ask}), place)
        for place, (name, ask) in enumerate(asks.items())
    }
    with deaf(plugin.node.kubelet):
        made = {name: plugin.client.create(pods[name]) for name in ("second", "first")}
        let_it_see(kind, plugin, witness)
    for name, pod in made.items():
        check(kind, plugin, plain, plugin.client.wait_for(pod, objects.ready, "Ready"), asks[name])
    answered = [one["likeliest"] for one in plugin.log_lines() if one["msg"] == "Allocate answered"]
    assert f"{space}/first" in answered[-2]  # which was asked for the second one


@only("volcano", "gpushare")
def test_pods_that_cross_are_refused_and_all_run_with_their_own_in_the_end(
    crossing, plain, namespace, command
):
    kind, plugin, witness = crossing
    client = plugin.client
    asks = {
        name: Ask(gpu, 2 + gpu if kind.by_gpu else 4)
        for gpu, name in enumerate(("alice", "bert", "chris"))
    }
    places = dict(zip(asks, range(GPUS), strict=True))

    def promised(pod):
        name = pod["metadata"]["labels"]["app"]
        made = kind.pod(name, namespace, plugin, {"main": asks[name]})
        if name in places:  # of the replacements each is promised when it is made
            made = promised_at(kind, made, places.pop(name))
        return made["metadata"]["annotations"]

    for name, ask in asks.items():
        web = objects.deployment(name, namespace)
        spec = kind.pod("p", namespace, plugin, {"main": ask})["spec"]
        del spec["nodeName"]
        web["spec"]["template"]["spec"] = spec | {"schedulerName": NAME}
        client.create(web)
    scheduler = Scheduler(client, namespace, plugin.node, promised)
    wait_until(lambda: len(scheduler.waiting()) == GPUS, "all pods are made")
    by_name = {pod["metadata"]["labels"]["app"]: pod for pod in scheduler.waiting()}
    with deaf(plugin.node.kubelet):
        for name in reversed(asks):
            scheduler.bind(by_name[name])
        let_it_see(kind, plugin, witness)

    def crossed(pod):
        return CHECK_FAILED in message(pod) and CROSSED in message(pod)

    for name in ("chris", "bert"):
        held = client.wait_for(by_name[name], crossed, "refused")
        assert "containerID" not in held["status"]["containerStatuses"][0]
    right = client.wait_for(by_name["alice"], objects.ready, "Ready")
    check(kind, plugin, plain, right, asks["alice"])

    with scheduler:
        for left in (1, 0):
            applied = command.apply()
            (action,) = applied.actions
            assert (action["rule"], action["reason"]) == ("prestart_failed", "crossed")
            assert action["outcome"] == "done"
            skips = [one["skip"] for one in applied.skipped if one["skip"] != "terminating"]
            assert skips == ["one_at_a_time"] * left
            wait_until(
                lambda left=left: ready(client, namespace) == GPUS - left, f"all but {left} run"
            )
        assert command.plan().actions == []
    pods = client.list(f"/api/v1/namespaces/{namespace}/pods")
    alive = {
        pod["metadata"]["labels"]["app"]: pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    }
    assert alive.keys() == asks.keys()
    for name, pod in alive.items():
        check(kind, plugin, plain, pod, asks[name])


def ready(client, namespace):
    """How many Deployments have their replica."""
    found = client.list(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    return sum(one["status"].get("readyReplicas", 0) for one in found)
