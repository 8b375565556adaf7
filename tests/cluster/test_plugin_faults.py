"""The plugin killed at each of its steps while pods start: what is lost, and when it has healed.

Most of it is waiting for the kubelet, which tries a failed start again after ten seconds or more.
So three nodes are at it at once, with all schemes on each.
"""

import time
from contextlib import ExitStack

import pytest
from bed import objects
from bed.node import Node
from plugin_truth import Stage, delete, is_untouched, refused_without_plugin, settled

from deviceplugin.steps import Step
from vgpu.schemes.volcano_node import lock_text

LOCK = "hamivgpu"
KILLED = -9
AT_ONCE = 3
WAVE = ("first", "second")

WRITES = (Step.BINDING_DECIDED, Step.CHECKPOINT_WRITTEN, Step.FILES_WRITTEN, Step.POD_TOLD)
"""Steps around which something is written; volcano's plugin is killed at the others, too."""

STEPS = {"volcano": tuple(Step), "gpushare": WRITES, "gaia": WRITES}


class Act:
    """What happens on one node: plugins die at one step, and are started again."""

    def __init__(self, stage, seated, step, namespace):
        self.stage, self.seated, self.step, self.namespace = stage, seated, step, namespace
        self.client = stage.client
        self.kinds = [kind for kind, steps in STEPS.items() if step in steps]
        self.pods = {kind: [] for kind in self.kinds}
        self.answered = {}
        self.lost = 0

    def launch(self, fault=""):
        """All plugins anew; with a ``fault`` they die there."""
        self.stage.kill(*self.kinds)
        self.stage.launch(*self.kinds, fault=fault)

    def wait_ready(self):
        self.stage.wait_ready(*self.kinds)

    def admit(self, name):
        """A pod of each kind."""
        for kind in self.kinds:
            self.create(kind, f"{name}-{kind}-{self.step}".replace("_", "-"))

    def create(self, kind, name):
        self.pods[kind].append(self.stage.pod(kind, name, self.namespace, gib=1))

    def lock(self):
        """As the scheduler does before it binds."""
        lock = {"metadata": {"annotations": {LOCK: lock_text(time.time(), None)}}}
        self.client.patch(self.stage.node.object(), lock)

    def wait_dead(self):
        for kind in self.kinds:
            assert self.stage.plugins[kind].daemon.wait() == KILLED

    def admit_without_plugin(self):
        self.admit("late")
        for kind, pods in self.pods.items():
            self.client.wait_for(pods[-1], refused_without_plugin, "refused")
            self.answered[kind] = {one.pod_uid for one in self.stage.assignments(kind)}

    def wait_settled(self):
        for kind, pods in self.pods.items():
            self.pods[kind] = [
                self.client.wait_for(pod, settled, "Ready or Failed") for pod in pods
            ]

    def replace_refused(self):
        """As a Deployment would; none of them had an answer of the plugin's."""
        for kind, pods in self.pods.items():
            refused = [pod for pod in pods if not objects.ready(pod)]
            for pod in refused:
                assert refused_without_plugin(pod), pod["status"]
                assert pod["metadata"]["uid"] not in self.answered[kind]
            delete(self.client, *refused)
            self.lost += len(refused)
            self.pods[kind] = [pod for pod in pods if objects.ready(pod)]
            for pod in refused:
                self.create(kind, pod["metadata"]["name"])

    def require_sound(self):
        for kind, pods in self.pods.items():
            assert is_untouched(self.client, self.seated[kind])
            assert all(map(objects.ready, pods))
            self.stage.require_sound(kind, [self.seated[kind], *pods])
        assert LOCK not in self.stage.node.object()["metadata"]["annotations"]


@pytest.fixture(scope="module")
def stages(control_plane, images, tmp_path_factory):
    """Nodes with plugins of all schemes, and a pod of each kind that runs through all of it."""
    with ExitStack() as stack:
        namespace = stack.enter_context(control_plane.namespace())
        stages = []
        for _ in range(AT_ONCE):
            node = stack.enter_context(Node(control_plane, images))
            folder = tmp_path_factory.mktemp("faults")
            stage = Stage(node, folder, *STEPS, flags=["--prestart-timeout=2s"])
            stack.callback(stage.close)
            stage.launch(*STEPS)
            stages.append(stage)
        yield [(stage, seated(stage, namespace)) for stage in stages]


def seated(stage, namespace):
    """A running pod of each kind."""
    stage.wait_ready()
    pods = [
        stage.pod(kind, f"seated-{kind}-{stage.node.name}", namespace, gib=40) for kind in STEPS
    ]
    return dict(zip(STEPS, stage.ready(*pods), strict=True))


def together():
    """The steps, as many at once as there are nodes."""
    steps = tuple(Step)
    return [steps[at : at + AT_ONCE] for at in range(0, len(steps), AT_ONCE)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", together(), ids=", ".join)
def test_killed_at_a_step_it_goes_on_where_it_was(steps, stages, namespace, capsys):
    acts = [
        Act(stage, seated, step, namespace)
        for (stage, seated), step in zip(stages, steps, strict=True)
    ]
    for act in acts:
        act.launch(fault=f"{act.step}:{1 if act.step is Step.LOCK_RELEASED else 2}")
    for act in acts:
        act.wait_ready()
        act.lock()
        for name in WAVE:
            act.admit(name)
    for act in acts:
        act.wait_dead()
        act.admit_without_plugin()
    healed = {}
    begun = time.monotonic()
    for act in acts:
        act.launch()
    for act in acts:
        act.wait_ready()
    ready = time.monotonic() - begun
    for act in acts:
        act.wait_settled()
        healed[act.step] = time.monotonic() - begun
    for act in acts:
        act.replace_refused()
    for act in acts:
        act.wait_settled()
        act.require_sound()
    with capsys.disabled():
        print(f"\nready after {ready:.1f} s, {sum(len(act.kinds) for act in acts)} plugins at once")
        for act in acts:
            pods = sum(map(len, act.pods.values()))
            print(
                f"killed at {act.step}: all settled after {healed[act.step]:.1f} s at most,"
                f" {act.lost} of {pods} had been admitted without a plugin"
            )
