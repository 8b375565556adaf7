"""Made-up trees of quotas, and the rules of Kueue as it writes them itself, to compare with."""

from hypothesis import strategies as st

from vgpu.kube.kueue_kinds import ClusterQueue, Cohort, LocalQueue, PodSet, QueuedWorkload, Reserved
from vgpu.model.declared_quota import DeclaredQuota, QuotaResource
from vgpu.model.names import ContainerKind
from vgpu.quota.kueue_config import KueueConfig
from vgpu.quota.kueue_tree import KueueObjects

KEY = QuotaResource("t4", "nvidia.com/gpu")

amounts = st.integers(0, 12)
limits = st.none() | amounts


GROUPS = (
    (("t4", "v100"), ("nvidia.com/gpu",)),
    (("default",), ("cpu", "pods")),
)
"""Resource groups: their flavors in order, and their resources."""

KEYS = tuple(
    QuotaResource(flavor, resource)
    for flavors, resources in GROUPS
    for flavor in flavors
    for resource in resources
)


@st.composite
def quotas(draw, keys=(KEY,)):
    return {key: DeclaredQuota(draw(amounts), draw(limits), draw(limits)) for key in keys}


@st.composite
def kueues(draw, keys=(KEY,)):
    """Cohorts that may lack an object, ClusterQueues with what they use, and one LocalQueue each.

    What they use may be more than they may have: a quota may have been lowered.
    """
    cohorts = []
    for number in range(draw(st.integers(0, 3))):
        parents = ["", *(cohort.name for cohort in cohorts)]
        own = draw(quotas(keys) | st.just({}))
        cohorts.append(Cohort(f"cohort-{number}", draw(st.sampled_from(parents)), own))
    names = ["", "only-named", *(cohort.name for cohort in cohorts)]
    queues = []
    for number in range(draw(st.integers(1, 4))):
        declared = draw(quotas(keys))
        cohort = draw(st.sampled_from(names))
        used = {key: draw(amounts) for key in keys}
        reserved = {
            key: Reserved(used[key], max(0, used[key] - declared[key].nominal)) for key in keys
        }
        queues.append(ClusterQueue(f"queue-{number}", cohort, declared, reserved))
    local = [LocalQueue("team", queue.name, queue.name, queue.reserved) for queue in queues]
    return KueueObjects(
        tuple(queues), tuple(local), tuple(cohorts), config=KueueConfig(), is_read=True
    )


def pod_set(name, count=1, **requests):
    """A pod set: requests of each pod are ``gpus``, and ``cpu`` in thousandths."""
    names = {"gpus": ("nvidia.com/gpu", ""), "cpu": ("cpu", "m")}
    quantities = {names[each][0]: f"{amount}{names[each][1]}" for each, amount in requests.items()}
    return PodSet(name, count, ((ContainerKind.APP, quantities),))


pod_sets = st.lists(
    st.builds(
        lambda count, gpus, cpu: (count, gpus, cpu),
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=3,
).map(lambda sets: tuple(pod_set(f"set-{n}", c, gpus=g, cpu=m) for n, (c, g, m) in enumerate(sets)))


def asking(queue, gpus, uid="asks", **fields):
    """A workload that waits in the LocalQueue of the same name, for so many GPUs."""
    fields = {"pod_sets": (pod_set("main", gpus=gpus),), **fields}
    return QueuedWorkload("team", uid, uid, queue=queue, **fields)


def is_assigned(sets, most_of):
    """Whether Kueue assigns a flavor to each pod set where ``most_of`` is free (v0.17.0,
    ``assignFlavors`` and ``findFlavorForPodSets`` in ``pkg/scheduler/flavorassigner``).
    """
    usage = {}
    for each in sets:
        requests = {name: one * each.count for name, one in each.requests().items()}
        requests["pods"] = each.count
        for flavors, covered in GROUPS:
            wanted = {name: amount for name, amount in requests.items() if name in covered}
            for flavor in flavors if wanted else ():
                sums = {
                    key: usage.get(key, 0) + amount
                    for name, amount in wanted.items()
                    for key in [QuotaResource(flavor, name)]
                }
                if all(amount <= most_of(key) for key, amount in sums.items()):
                    usage |= sums
                    break
            else:
                if wanted:
                    return False
    return True


class Recursion:
    """Kueue's own recursion (v0.17.0, ``pkg/cache/scheduler/resource_node.go``), word by word."""

    def __init__(self, tree, key):
        self.tree, self.key = tree, key

    def children(self, node):
        return [each for each in self.tree.children(node.name) if each.name.level != "LocalQueue"]

    def declared(self, node):
        return node.declared.get(self.key, DeclaredQuota(0))

    def subtree(self, node):
        below = (self.subtree(each) - self.local(each) for each in self.children(node))
        return self.declared(node).nominal + sum(below)

    def local(self, node):
        lending = self.declared(node).lending_limit
        return 0 if lending is None else max(0, self.subtree(node) - lending)

    def usage(self, node):
        if node.name.level == "ClusterQueue":
            return node.used.get(self.key, 0)
        return sum(max(0, self.usage(each) - self.local(each)) for each in self.children(node))

    def available(self, node):
        parent = self.tree.parent(node.name)
        if parent is None:
            return self.subtree(node) - self.usage(node)
        of_parent = self.available(parent)
        borrowing = self.declared(node).borrowing_limit
        if borrowing is not None:
            stored = self.subtree(node) - self.local(node)
            used = max(0, self.usage(node) - self.local(node))
            of_parent = min(stored - used + borrowing, of_parent)
        return max(0, self.local(node) - self.usage(node)) + of_parent

    def potential(self, node):
        parent = self.tree.parent(node.name)
        if parent is None:
            return self.subtree(node)
        most = self.local(node) + self.potential(parent)
        borrowing = self.declared(node).borrowing_limit
        return most if borrowing is None else min(self.subtree(node) + borrowing, most)
