"""The controllers' decisions on a :class:`ModelCluster`, and what must hold of its objects."""

import itertools

from kubeshare.labelled_pods import labelled_step
from kubeshare.model import FALSE, ConditionType
from kubeshare.place_choice import Unplaced, choose_place, new_gpuid, place_name
from kubeshare.placement import KubeShareAlgorithm
from kubeshare.reasons import SharePodReason
from kubeshare.share_pod_cluster import SharePodCluster
from kubeshare.steps import holder_step, placed_patch, refused_patch, tenant_step
from kubeshare.virtual_gpu import HOLDER_SECONDS
from tests.kubeshare.model_cluster import GPU_BYTES, ModelCluster, Refused, node
from vgpu.schemes.kubeshare.gemini_config import MANAGER_PORTS
from vgpu.schemes.kubeshare.sharepod import is_made_up

NAMES = "abcdefgh"


class Controllers:
    """One process of the controllers: its view of the cluster, and its steps."""

    def __init__(self, cluster, keep_idle=0, algorithm=KubeShareAlgorithm.PAPER):
        self.cluster, self.state, self.keep_idle = cluster, SharePodCluster(), keep_idle
        self.algorithm = algorithm
        self.letters = itertools.cycle("abcdefghijklmnopqrstuvwxyz" * 5 + "zyxw")
        cluster.read_all(self.state)

    def place(self, key):
        """Place one SharePod; whether something was written."""
        found = self.state.share_pods.get(key)
        if found is None or not found.needs_place:
            return False
        if found.gpuid and not found.node:
            patch = refused_patch(found, SharePodReason.GPUID_WITHOUT_NODE, "a node is missing")
            return patch is not None and self.send(patch)
        views = self.state.placement_nodes()
        choice = choose_place(found, views, self.algorithm, self.state.lost_gpus())
        if isinstance(choice, Unplaced):
            patch = refused_patch(found, SharePodReason.UNSCHEDULABLE, choice.text)
            return patch is not None and self.send(patch)
        gpuid = new_gpuid(self.state.is_used_gpuid, lambda _: next(self.letters))
        return self.send(placed_patch(found, place_name(choice, gpuid)))

    def sync(self, key):
        view = self.state.tenant_view(key, self.cluster.now)
        if view is None:
            return False
        step = labelled_step(view) if view.share_pod.is_pod else tenant_step(view)
        return step is not None and self.send(step)

    def hold(self, name):
        gpu = self.state.virtual_gpu(name)
        kept = name in self.state.idle_gpus(name.node)[: self.keep_idle]
        exists = name.node in self.state.nodes
        step = holder_step(gpu, node_exists=exists, may_create=True, is_kept=kept)
        if step is None:
            return False
        if hasattr(step, "reason"):
            self.state.closing.add(name)
        return self.send(step)

    def send(self, step):
        """Send a step; it counts as done only if the API server has taken it."""
        try:
            answer = self.cluster.apply(step)
        except Refused:
            return False
        if answer is not None:
            key = f"{answer.ref.namespace}/{answer.ref.name}"
            if hasattr(step, "after"):
                self.state.assume(answer)
            else:
                self.state.set_pod(key, answer)
        return True

    def round(self):
        """Every step that is due; whether something was written."""
        written = [self.place(key) for key in self.state.waiting]
        written += [self.sync(key) for key in sorted(self.state.share_pods)]
        written += [self.hold(gpu.name) for gpu in self.state.virtual_gpus()]
        return any(written)


def settle(cluster, controllers):
    """Let the kubelets and the controllers act until nothing changes, also after some time."""
    quiet = 0
    for _ in range(300):
        cluster.deliver(controllers.state)
        has_acted = controllers.round()
        before = next(cluster.numbers)
        for pod in cluster.holders():
            node = pod.pod.labels["kubeshare/nodeName"]
            if not pod.unschedulable_since or cluster.free_gpus(node):
                cluster.serve_holder(pod)
        for pod in cluster.real_pods():
            if pod.pod.phase == "Pending":
                cluster.turn(pod, "Running")
        cluster.finish_ending()
        is_quiet = not has_acted and next(cluster.numbers) == before + 1 and not cluster.events
        quiet = quiet + 1 if is_quiet else 0
        if quiet == 3:
            return
        cluster.now += HOLDER_SECONDS * quiet
    raise AssertionError("the controllers never come to rest")


def require_invariants(cluster):
    """What A5 of the reference asks for, of the objects alone."""
    state = SharePodCluster()
    events, cluster.events = cluster.events, []
    cluster.read_all(state)
    cluster.events = events
    for gpu in state.virtual_gpus():
        bound = gpu.bound_users
        assert sum(user.request.request_milli for user in bound) <= 1000, gpu
        assert sum(user.request.memory_bytes for user in bound) <= GPU_BYTES, gpu
        assert len({user.uuid for user in bound}) <= 1, gpu
    for name in cluster.nodes:
        ports = [user.port for user in state.users_of_node(name) if user.port]
        assert len(ports) == len(set(ports)), ports
    for pod in cluster.created:
        assert pod.port in MANAGER_PORTS
        assert pod.uuid
    for pod, _ in cluster.deleted:
        assert pod.share_pod_uid or pod.ref.name.startswith("kubeshare-vgpu-")
    for pod, _ in cluster.evicted:
        assert pod.share_pod_uid or pod.labelled is not None


def require_labels_together(cluster):
    """Of each affinity label at most one virtual GPU that the controllers have made."""
    state = SharePodCluster()
    events, cluster.events = cluster.events, []
    cluster.read_all(state)
    cluster.events = events
    labels = [
        label
        for gpu in state.virtual_gpus()
        if is_made_up(gpu.name.gpuid)
        for label in gpu.candidate(GPU_BYTES).affinity
    ]
    assert len(labels) == len(set(labels)), state.virtual_gpus()


def require_settled(cluster):
    """Each SharePod is finished, runs with its own GPU, or has a reason; no GPU is idle."""
    state = SharePodCluster()
    cluster.read_all(state)
    for key, each in state.share_pods.items():
        pod = cluster.pods.get(key)
        if each.is_finished:
            continue
        if each.bound and each.is_pod:
            assert each.bound == state.virtual_gpu(each.place).uuid, each
            continue
        if pod is not None and each.node and each.gpuid:
            gpu = state.virtual_gpu(each.place)
            assert each.bound == pod.uuid == gpu.uuid, (each, gpu)
            assert each.port == pod.port
            continue
        reasons = [
            condition.reason
            for condition in each.conditions
            if condition.status == FALSE and condition.type != ConditionType.READY
        ]
        assert reasons, each
        assert SharePodReason.HOLDER_PENDING not in reasons, each
    for gpu in state.virtual_gpus():
        assert gpu.users, gpu


# ---------------------------------------------------------------- scenarios


def started(*share_pods, nodes=None, **options):
    """A cluster in which these SharePods run, and its controllers."""
    cluster = ModelCluster(*(node(*each) for each in (nodes or {"n1": 2}).items()))
    controllers = Controllers(cluster, **options)
    for each in share_pods:
        cluster.store(each)
    settle(cluster, controllers)
    return cluster, controllers


def settled(cluster, controllers):
    settle(cluster, controllers)
    require_invariants(cluster)
    require_settled(cluster)


def reasons(cluster, name):
    """Reason of each condition."""
    return {each.type: each.reason for each in cluster.share_pods[f"ns/{name}"].conditions}
