"""The plugin killed at each of its steps while pods start: what is lost, and when it has healed.

With CDI, and without it, where the pods come in another order than the one in which they were
promised: a wrong guess is refused, whoever dies meanwhile. Most of it is waiting for the kubelet,
which tries a failed start again after ten seconds or more. So three nodes are at it at once, with
several schemes on each.

In `make test` the plugins of gpushare and gpu-manager are killed at each of their steps in one of
the two ways; in `make test-thorough` in both.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from deviceplugin.failpoints import Step
from deviceplugin.reasons import BindRefusal
from tests.cluster.plugin_crossing import let_it_see, promised_at
from tests.cluster.plugin_kinds import KINDS
from tests.cluster.plugin_scheduler import deaf
from tests.cluster.plugin_truth import (
    Stage,
    delete,
    is_untouched,
    promised,
    refused_without_plugin,
    settled,
    waits_with,
)
from tests.support.bed import objects
from tests.support.bed.node import Node
from tests.support.waiting import wait_until
from vgpu.schemes.volcano.node import lock_text

LOCK = "hamivgpu"
KILLED = -9
AT_ONCE = 3
ROUNDS = 5
"""Of replacing what was refused: those that take its place may cross as well."""


class Wave(NamedTuple):
    """A pod of each kind: on which GPU, and as which of the pods it was promised."""

    name: str
    gpu: int
    place: int


WAVES = (Wave("first", 0, 1), Wave("second", 1, 0), Wave("third", 0, 2))
"""In the order in which the kubelet hears of them: it first asks for one that has to wait."""


class Runtime(NamedTuple):
    """How what is a container's own gets there."""

    containerd: str
    flags: tuple[str, ...]
    guesses: bool
    steps: Mapping[str, Sequence[Step]]


WRITES = (Step.BINDING_DECIDED, Step.CHECKPOINT_WRITTEN, Step.FILES_WRITTEN, Step.POD_ANNOTATED)
"""Steps around which something is written; volcano's plugin is killed at the others, too."""

STEPS = {"volcano": tuple(Step), "gpushare": WRITES, "gaia": WRITES}
OUTER, INNER = (WRITES[0], WRITES[-1]), WRITES[1:-1]

RUNTIMES = {
    "cdi": Runtime("1.7", (), guesses=False, steps={**STEPS, "gpushare": OUTER, "gaia": INNER}),
    "without_cdi": Runtime(
        "1.6", ("--no-cdi",), guesses=True, steps={**STEPS, "gpushare": INNER, "gaia": OUTER}
    ),
}
"""As in `make test`: each scheme comes to each of its steps in one of them."""


class Act:
    """What happens on one node: plugins die at one step, and are started again."""

    def __init__(self, runtime, stage, seated, step, namespace):
        self.runtime = runtime
        self.stage, self.seated, self.step, self.namespace = stage, seated, step, namespace
        self.client = stage.client
        self.kinds = [kind for kind, steps in runtime.steps.items() if step in steps]
        self.pods = {kind: [] for kind in self.kinds}
        self.answered = {}
        self.lost = self.crossed = 0

    @property
    def times(self):
        """How often it comes to the step at least; with CDI one look may bind all pods."""
        once = {Step.LOCK_RELEASED}
        if not self.runtime.guesses:
            once |= {Step.BINDING_DECIDED, Step.CHECKPOINT_WRITTEN}
        return 1 if self.step in once else 2

    def launch(self, fault=""):
        """All plugins started again; with a ``fault`` they die there."""
        self.stage.kill(*self.kinds)
        self.stage.launch(*self.kinds, fault=fault)

    def wait_ready(self):
        self.stage.wait_ready(*self.kinds)

    def admit(self, wave):
        """A pod of each kind."""
        for kind in self.kinds:
            name = f"{wave.name}-{kind}-{self.step}".replace("_", "-")
            made = self.stage.promised_pod(kind, name, self.namespace, wave.gpu, gib=1)
            self.pods[kind].append(self.client.create(promised_at(KINDS[kind], made, wave.place)))

    def admit_all(self):
        """Where the plugin guesses it knows of all of them before the kubelet asks.

        Where it is to release the lock none has to wait: it would wait with that, too.
        """
        if not self.runtime.guesses or self.step is Step.LOCK_RELEASED:
            for wave in sorted(WAVES, key=lambda wave: wave.place):
                self.admit(wave)
            return
        with deaf(self.stage.node.kubelet):
            for wave in WAVES:
                self.admit(wave)
            for kind in self.kinds:
                let_it_see(KINDS[kind], self.stage.plugins[kind], self.seated[kind])

    def lock(self):
        """As the scheduler does before it binds."""
        lock = {"metadata": {"annotations": {LOCK: lock_text(time.time(), None)}}}
        self.client.patch(self.stage.node.object(), lock)

    def wait_dead(self):
        for kind in self.kinds:
            assert self.stage.plugins[kind].daemon.wait() == KILLED

    def admit_without_plugin(self):
        self.admit(Wave("late", 0, len(WAVES)))
        for kind, pods in self.pods.items():
            self.client.wait_for(pods[-1], refused_without_plugin, "refused")
            self.answered[kind] = {one.pod_uid for one in self.stage.assignments(kind)}

    def wait_settled(self):
        for kind, pods in self.pods.items():
            self.pods[kind] = [
                self.client.wait_for(pod, self.settled, "Ready, Failed or crossed", seconds=180)
                for pod in pods
            ]

    def settled(self, pod):
        return settled(pod) or (self.runtime.guesses and waits_with(BindRefusal.CROSSED)(pod))

    def all_run(self):
        return all(objects.ready(pod) for pods in self.pods.values() for pod in pods)

    def replace_refused(self):
        """As a Deployment would when the reconciler has evicted them.

        None had an answer of the plugin's, but for those whose answer was a wrong guess.
        """
        for kind, pods in self.pods.items():
            refused = [pod for pod in pods if not objects.ready(pod)]
            for pod in refused:
                if waits_with(BindRefusal.CROSSED)(pod):
                    self.crossed += 1
                    self.stage.crossed.add(f"{self.namespace}/{pod['metadata']['name']}")
                    assert "containerID" not in pod["status"]["containerStatuses"][0]
                    continue
                self.lost += 1
                assert refused_without_plugin(pod), pod["status"]
                assert pod["metadata"]["uid"] not in self.answered[kind]
            delete(self.client, *refused)
            self.pods[kind] = [pod for pod in pods if objects.ready(pod)]
            for pod in refused:
                name, promise = pod["metadata"]["name"], promised(pod)
                self.pods[kind].append(
                    self.stage.pod(kind, name, self.namespace, gpu=promise.gpu, gib=promise.gib)
                )

    def require_sound(self):
        for kind, pods in self.pods.items():
            assert is_untouched(self.client, self.seated[kind])
            assert all(map(objects.ready, pods))
            self.stage.require_sound(kind, [self.seated[kind], *pods])
        node = self.stage.node
        wait_until(lambda: LOCK not in node.object()["metadata"]["annotations"], "no lock")


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request, full):
    runtime = RUNTIMES[request.param]
    return runtime._replace(steps=STEPS) if full else runtime


@pytest.fixture(scope="module")
def stages(runtime, control_plane, images, tmp_path_factory):
    """Nodes with the plugins that are killed there, and a pod of each that runs all the time."""
    with ExitStack() as stack:
        namespace = stack.enter_context(control_plane.namespace())
        stages = []
        for number in range(AT_ONCE):
            here = set(tuple(Step)[number::AT_ONCE])
            kinds = [kind for kind, steps in runtime.steps.items() if here & {*steps}]
            node = Node(control_plane, images, containerd=runtime.containerd)
            stack.enter_context(node)
            folder = tmp_path_factory.mktemp("faults")
            flags = ["--prestart-timeout=2s", *runtime.flags]
            stage = Stage(node, folder, *kinds, flags=flags)
            stack.callback(stage.close)
            stage.launch(*kinds)
            stages.append(stage)
        yield [(stage, seated(stage, namespace)) for stage in stages]


def seated(stage, namespace):
    """A running pod of each kind."""
    stage.wait_ready()
    pods = [
        stage.pod(kind, f"seated-{kind}-{stage.node.name}", namespace, gib=40)
        for kind in stage.plugins
    ]
    return dict(zip(stage.plugins, stage.ready(*pods), strict=True))


def together():
    """The steps, as many at once as there are nodes."""
    steps = tuple(Step)
    return [steps[at : at + AT_ONCE] for at in range(0, len(steps), AT_ONCE)]


@pytest.mark.slow
@pytest.mark.thorough("plugin", smaller=True)
@pytest.mark.parametrize("steps", together(), ids=", ".join)
def test_killed_at_a_step_it_goes_on_where_it_was(steps, runtime, stages, namespace, figure):
    acts = [
        Act(runtime, stage, seated, step, namespace)
        for (stage, seated), step in zip(stages, steps, strict=True)
    ]
    for act in acts:
        act.launch(fault=f"{act.step}:{act.times}")
    for act in acts:
        act.wait_ready()
        act.lock()
        act.admit_all()
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
    for _ in range(ROUNDS):
        if all(act.all_run() for act in acts):
            break
        for act in acts:
            act.replace_refused()
        for act in acts:
            act.wait_settled()
    for act in acts:
        act.require_sound()
    figure(f"ready after {ready:.1f} s, {sum(len(act.kinds) for act in acts)} plugins at once")
    for act in acts:
        pods = sum(map(len, act.pods.values()))
        figure(
            f"killed at {act.step}: all settled after {healed[act.step]:.1f} s at most,"
            f" {act.lost} of {pods} had been admitted without a plugin, {act.crossed} were"
            " crossed"
        )
