"""Made-up trees of Volcano's Queues: which level refuses, by Volcano's rule written another way."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vgpu.kube.volcano_kinds import PodGroup, Queue
from vgpu.model.declared_quota import QuotaResource
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.quota.resources import GPUS
from vgpu.quota.tree import QuotaTree
from vgpu.quota.volcano_answer import QueueRequest, shortages
from vgpu.quota.volcano_scheduler import VolcanoScheduler, version_of, volcano_scheduler
from vgpu.quota.volcano_tree import VolcanoObjects, queue_name, requested_once, volcano_nodes
from vgpucli.explain.model import ExplainReason
from vgpucli.explain.pod_group import GroupOfPod

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
HIERARCHICAL = VolcanoScheduler(frozenset({"capacity"}), True, (1, 14), "here", "")

amounts = st.integers(0, 9)
limits = st.none() | amounts


@st.composite
def volcanos(draw):
    """A root and up to five queues below it; pods in queues, whose requests the statuses count.

    Each pod of a queue requests memory once and holds it on each of its GPUs.
    """
    names = ["root"]
    parents = {}
    for number in range(draw(st.integers(1, 5))):
        parents[f"q{number}"] = draw(st.sampled_from(names))
        names.append(f"q{number}")
    pods, groups = [], []
    for number in range(draw(st.integers(0, 6))):
        queue = draw(st.sampled_from(names[1:]))
        gpus, memory = draw(st.integers(1, 3)), draw(amounts)
        marks = {"scheduling.k8s.io/group-name": f"g{number}"}
        container = Container("c", {NUMBER: gpus, MEMORY: memory})
        ref = PodRef(f"uid-{number}", "ml", f"p{number}")
        pods.append(Pod(ref, node="n", annotations=marks, containers=(container,)))
        groups.append(PodGroup("ml", f"g{number}", queue, phase="Running"))
    of_group = {each.name: each.queue for each in groups}
    shown = {name: {NUMBER: 0, MEMORY: 0} for name in names}
    for pod in pods:
        name = of_group[pod.annotations["scheduling.k8s.io/group-name"]]
        units = pod.requested_units()
        while name:
            shown[name][NUMBER] += units[NUMBER]
            shown[name][MEMORY] += units[NUMBER] * units.get(MEMORY, 0)
            name = parents.get(name, "")
    queues = []
    for name in names:
        most = {} if name == "root" else {NUMBER: draw(limits), MEMORY: draw(limits)}
        capability = {key: str(each) for key, each in most.items() if each is not None}
        allocated = {key: str(each) for key, each in shown[name].items()}
        queues.append(Queue(name, "Open", capability, allocated, parents.get(name, "")))
    return VolcanoObjects(tuple(queues), tuple(groups), HIERARCHICAL), tuple(pods), parents


def refusing(volcano, pods, parents, name, requests):
    """The levels that refuse, with the resource: Volcano's check, from the pods alone."""
    of_group = {each.name: each.queue for each in volcano.groups}
    by_name = {each.name: each for each in volcano.queues}

    def is_below(queue, level):
        while queue and queue != level:
            queue = parents.get(queue, "")
        return queue == level

    level = name
    while level:
        for resource, most in by_name[level].capability.items():
            counted = sum(
                pod.requested_units().get(resource, 0)
                for pod in pods
                if is_below(of_group[pod.annotations["scheduling.k8s.io/group-name"]], level)
            )
            requested = requests.get(resource, 0)
            if requested and counted + requested > int(most):
                yield level, resource
        level = parents.get(level, "")


@given(volcanos(), st.integers(0, 4), st.integers(1, 4), amounts)
def test_the_levels_that_refuse_are_those_of_volcanos_check_and_what_is_held_sums(
    made, number, gpus, memory
):
    volcano, pods, parents = made
    name = sorted(parents)[number % len(parents)]
    requests = {NUMBER: gpus, MEMORY: memory}
    once = requested_once(volcano, pods)
    found = shortages(QueueRequest(volcano, name, requests, once))
    expected = set(refusing(volcano, pods, parents, name, requests))
    certain = {(each.queue, each.resource) for each in found if each.is_certain}
    assert certain <= expected
    assert expected <= {(each.queue, each.resource) for each in found}
    for each in found:
        assert each.counted + each.requested > each.most
    held = [(pod, {GPUS: pod.requested_units()[NUMBER]}) for pod in pods]
    tree = QuotaTree(volcano_nodes(volcano, held))
    (root,) = tree.roots()
    assert tree.held(root.name, "").get(GPUS, 0) == sum(each[GPUS] for _, each in held)
    for queue in volcano.queues:
        path = [each.capability.get(NUMBER) for each in volcano.path(queue.name)]
        least = min((int(each) for each in path if each is not None), default=None)
        assert tree.limit(queue_name(queue.name), QuotaResource("", NUMBER)) == least
    without_pods = shortages(QueueRequest(volcano, name, requests))
    assert {(each.queue, each.resource) for each in without_pods} >= expected


@given(volcanos(), st.integers(0, 4), st.integers(1, 4))
def test_one_other_obstacle_is_named_and_not_the_quota(made, number, gpus):
    volcano, pods, parents = made
    name = sorted(parents)[number % len(parents)]
    group = PodGroup("ml", "asks", name, phase="Pending")

    def cause(objects):
        once = requested_once(objects, pods)
        return GroupOfPod("ml/asks", group, objects, {NUMBER: gpus}, once).cause()

    reason, _ = cause(volcano)
    is_refused = bool([*refusing(volcano, pods, parents, name, {NUMBER: gpus})])
    expected = ExplainReason.QUEUE_FULL if is_refused else ExplainReason.POD_GROUP_WAITS
    assert reason is expected
    closed = tuple(
        structs.replace(each, state="Closed") if each.name == name else each
        for each in volcano.queues
    )
    assert cause(structs.replace(volcano, queues=closed)) == (
        ExplainReason.QUEUE_FULL,
        f"queue {name} is Closed",
    )
    without = structs.replace(HIERARCHICAL, plugins=frozenset())
    assert cause(structs.replace(volcano, scheduler=without))[0] is ExplainReason.POD_GROUP_WAITS


def test_versions_and_configurations_that_cannot_be_read_are_unknown():
    assert version_of("v1.12.2") == (1, 12)
    assert version_of("1.14.0-rc1") == (1, 14)
    assert version_of("latest") is version_of("") is version_of("sha256:1234") is None
    for text in ("a: [", "[]", "tiers: 3", "x: 1"):
        read = volcano_scheduler(text, "ConfigMap a/b c", "v1.14.1")
        assert read.plugins is None
        assert read.version == (1, 14)
        assert "ConfigMap a/b c cannot be read" in read.problem
    odd = volcano_scheduler("tiers: [3, {plugins: x}, {plugins: [1, {name: capacity}]}]", "here")
    assert odd.plugins == {"capacity"}
