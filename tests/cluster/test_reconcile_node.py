"""The rules of one node: its own files in their real formats, its pods on a real API server."""

from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from reconciler.apply.applier import Applier
from reconciler.apply.audit import Audit
from reconciler.cycle import Cycles
from reconciler.observe.node import NodeObserver
from reconciler.policy import Ages, Mode, Policy
from reconciler.reasons import ActionOutcome, Cause, Rule, SkipReason
from simulator.demo import A10, L40S, demo
from tests.cluster.counted_writes import counted_writes
from tests.cluster.reconcile_node import SECOND, NodeOnStage
from tests.cluster.reconciling import (
    CLUSTER_RIGHTS,
    NODE_RIGHTS,
    Command,
    is_evicted,
    staged,
    version,
    with_rights,
)
from tests.support.bed.processes import Daemon
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import Units
from vgpu.model.units import GIB
from vgpu.sources.node_sources import NodePaths

EAGER = Policy(ages=Ages(*[0.0] * len(Ages.__struct_fields__)))


@pytest.fixture(scope="module")
def account(api):
    return with_rights(api, *NODE_RIGHTS, account="vgpu-reconciler-node", node=demo().node)


@pytest.fixture
def node(api, api_namespace, tmp_path):
    with staged(api.client) as stage:
        yield NodeOnStage(stage, api_namespace, tmp_path)


@pytest.fixture
def command(account, tmp_path):
    return Command(account, tmp_path)


@pytest.fixture
def look_as(node, tmp_path):
    """Makes cycles of an observer that asks the node's driver, too."""
    places = NodePaths(
        **{
            name: getattr(node.sim.paths, name)
            for name in NodePaths.__struct_fields__
            if hasattr(node.sim.paths, name)
        }
    )
    with ExitStack() as stack:

        def make(client, policy=EAGER):
            cluster = stack.enter_context(ApiClient.connect(str(client.kubeconfig)))
            audit = stack.enter_context(Audit.open(str(tmp_path / "audit.jsonl")))
            driver = node.sim.driver(lambda: SECOND)
            units = Units(1024, GIB)
            observer = NodeObserver(cluster, node.name, places, units, driver=driver, timeout=30.0)
            stack.callback(observer.close)
            return Cycles(observer, policy, apply=Applier(cluster, audit).apply)

        yield make


@pytest.fixture
def look(look_as, account):
    return look_as(account)


def annotations(api, pod):
    return api.client.get(pod)["metadata"].get("annotations", {})


def edit(api, pod, **annotations):
    return api.client.patch(pod, {"metadata": {"annotations": annotations}})


def cross(api, pod):
    """Its annotations name the other GPU."""
    assigned = annotations(api, pod)
    crossed = {key: text.replace(A10.uuid, L40S.uuid) for key, text in assigned.items()}
    assert crossed != assigned
    edit(api, pod, **crossed)
    return assigned


def by_rule(plan):
    return {entry.finding.rule: entry.finding for entry in plan.entries}


def test_a_crossed_gpu_is_put_right_and_back_if_asked(api, node, command):
    detector = node.pod("detector")
    true = cross(api, detector)
    wrong = annotations(api, detector)
    well = version(api.client, node.pod("chat"))
    plan = command.plan(*node.flags())
    (entry,) = (each for each in plan.actions if each["rule"] == "card_drift")
    assert (entry["reason"], entry["uid"]) == ("card_differs", detector["metadata"]["uid"])
    assert A10.uuid in "\n".join(entry["evidence"])

    applied = command.apply(*node.flags())
    assert {each["outcome"] for each in applied.actions} == {"done"}
    assert annotations(api, detector) == true
    again = command.plan(*node.flags())
    assert not [each for each in again.entries if each["rule"] == "card_drift"]
    assert version(api.client, node.pod("chat")) == well

    assert command.restore().code == 0
    assert annotations(api, detector) == wrong


def test_what_is_repaired_is_not_written_again(api, node, look):
    cross(api, node.pod("detector"))
    before = counted_writes(api.client)
    while any(result.outcome is ActionOutcome.DONE for result in look.run().results):
        assert counted_writes(api.client)["PATCH", "pods/status"] > before["PATCH", "pods/status"]
        before = counted_writes(api.client)
    for _ in range(5):
        look.run()
    assert counted_writes(api.client) == before


def test_a_claim_that_was_served_and_not_marked_is_marked(api, node, look):
    whisper = node.pod("whisper")
    kept = annotations(api, whisper)
    edit(api, whisper, ALIYUN_COM_GPU_MEM_ASSIGNED="false")
    made = look.make()
    finding = by_rule(made.plan)[Rule.RECOVER]
    assert (finding.cause, finding.object_ref.name) == (
        Cause.RUNS_UNASSIGNED,
        whisper["metadata"]["name"],
    )
    assert {result.outcome for result in look.apply(made)} == {ActionOutcome.DONE}
    assert annotations(api, whisper)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
    assert annotations(api, whisper)["ALIYUN_COM_GPU_MEM_IDX"] == kept["ALIYUN_COM_GPU_MEM_IDX"]
    assert Rule.RECOVER not in by_rule(look.make().plan)


def test_a_claim_that_was_lost_is_written_again(api, node, look):
    bao = node.pod("notebook-bao")
    kept = annotations(api, bao)
    edit(api, bao, **dict.fromkeys(kept))
    made = look.make()
    finding = by_rule(made.plan)[Rule.RECOVER]
    assert finding.cause is Cause.RUNS_UNCLAIMED
    assert [result.outcome for result in look.apply(made)] == [ActionOutcome.DONE]
    new = annotations(api, bao)
    for key in ("volcano.sh/vgpu-ids-new", "volcano.sh/bind-phase", "volcano.sh/vgpu-node"):
        assert new[key] == kept[key], key
    assert Rule.RECOVER not in by_rule(look.make().plan)


def test_a_claim_for_which_there_is_no_room_is_not_written(api, node, look):
    """More of the L40S's cores is held than there is, so a repair must not write that."""
    ranker = node.pod("ranker")
    edit(api, ranker, **dict.fromkeys(annotations(api, ranker)))
    made = look.make()
    (entry,) = (each for each in made.plan.skipped if each.finding.rule is Rule.RECOVER)
    assert (entry.skip, entry.finding.object_ref.name) == (
        SkipReason.WOULD_OVERBOOK,
        ranker["metadata"]["name"],
    )
    assert [*look.apply(made)] == []
    assert annotations(api, ranker) == {}


def test_a_process_on_a_gpu_that_was_not_allocated_to_it_is_reported(node, look):
    made = look.make()
    finding = by_rule(made.plan)[Rule.UNOWNED_PROCESS]
    assert finding.action is None
    assert str(node.sim.scenario.host_processes[0].pid) in "\n".join(finding.evidence)


def test_of_an_overcommitted_gpu_just_one_pod_is_sent_away_where_that_is_asked_for(
    api, node, look_as, account
):
    """By the node's own evidence; the node's account may report, and must not evict.

    All holders are about as young, so that it may be any of them, the Job's as well.
    """
    policy = replace(
        EAGER,
        modes={Rule.DOUBLE_BOOKED: Mode.APPLY},
        evict_bare=True,
        owners=(*EAGER.owners, "Job"),
    )
    for client, outcome in (
        (account, ActionOutcome.FORBIDDEN),
        (with_rights(api, *CLUSTER_RIGHTS), ActionOutcome.DONE),
    ):
        cycles = look_as(client, policy)
        made = cycles.make()
        (entry,) = (one for one in made.plan.actions if one.finding.rule is Rule.DOUBLE_BOOKED)
        assert L40S.uuid in entry.finding.evidence[0]
        assert [result.outcome for result in cycles.apply(made)] == [outcome]
    gone = [name for name, pod in node.pods.items() if is_evicted(api.client, pod)]
    assert gone == [entry.finding.object_ref.name]


def test_a_pod_that_moved_on_keeps_its_annotations(api, node, look):
    detector = node.pod("detector")
    cross(api, detector)
    made = look.make()
    edit(api, detector, **{"vgpu.dev/note": "mine"})
    now = annotations(api, detector)
    assert ActionOutcome.CHANGED in {result.outcome for result in look.apply(made)}
    assert annotations(api, detector) == now


# ---------------------------------------------------------------- folders


@pytest.fixture
def loop(command, node, tmp_path, workplace):
    """`vgpu reconcile run` on this node, every second."""
    port = workplace.port()
    listen = f"--web.listen-address={workplace.address}:{port}"
    line = command.line(
        "run",
        "--mode=apply",
        "--every=1s",
        f"--audit={command.audit}",
        listen,
        *command.flags(),
        *node.flags(),
    )
    with Daemon("reconcile", line, tmp_path / "run.log", env=command.environment) as daemon:
        yield daemon


def test_a_folder_that_its_pod_left_behind_is_removed_by_the_loop_alone(node, command):
    """A single look cannot know that the pod has been gone for long enough."""
    assert node.orphan.exists()
    entries = command.apply(*node.flags()).skipped
    skips = {each["name"]: each["skip"] for each in entries if each["rule"] == "orphan_shim_dir"}
    assert skips.pop(str(node.orphan)) == "one_shot"
    assert [*skips.values()] == ["terminal_pod_exists"]
    assert node.orphan.exists()


def test_the_loop_removes_the_folder_and_no_other(node, loop, command):
    orphan, others = node.orphan, node.folders - {node.orphan}
    loop.wait_until(lambda: not orphan.exists(), "the folder is removed")
    loop.stop()
    assert node.folders == others
    (done,) = (
        each
        for each in command.audit_records()
        if each["event"] == "result" and each["rule"] == "orphan_shim_dir"
    )
    assert (done["outcome"], done["subject"]["name"]) == ("done", str(orphan))
