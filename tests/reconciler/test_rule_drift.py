"""Annotations of running pods are made to say where their containers are; and never too much."""

import json

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from deviceplugin.gaia.migration import parse_checkpoint
from reconciler.cluster_index import ClusterIndex
from reconciler.model import ObjectKind
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.drift import gpu_drift, recover
from tests.reconciler.node_samples import SCHEMES, ledger, on_node, statement
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    HOUR,
    NOW,
    SHARE,
    assumed,
    ended,
    gpus,
    owner,
    pod,
    real_pod,
    replace,
    share_pod,
    snapshot,
    terminating,
    uuid,
)
from vgpu.ledger import ConflictKind, Evidence, Statement, merge
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.objects import Container, ContainerState, Status
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB

REPAIRED = ("volcano", "hami", "gpushare", "gaia")
CORES = {"volcano": None, "hami": None, "gpushare": None, "gaia": 200}
HERE, THERE = uuid("gpu-1", 0), uuid("gpu-1", 1)


def find(rule, seen, codecs=CODECS_IN_USE):
    return list(rule(ClusterIndex(seen, codecs), Policy()))


def only(rule, seen):
    (finding,) = find(rule, seen)
    return finding


def edited(one, action):
    annotations = one.annotations | {
        k: text for k, text in action.after.items() if text is not None
    }
    return replace(one, annotations=annotations)


def says(one, style):
    """(container, GPU, phase) of the claim."""
    claim = CODECS[style].claim(one)
    names = {name: device.uuid for device in gpus("gpu-1") for name in device.names}
    return [
        (each.container, names[share.device], each.phase)
        for each in claim.allocations
        for share in each.shares
    ]


def kubelet_gave(to, style, gpu=1, **changes):
    return statement(to, style, gpu=gpu, cores=CORES[style], **changes)


# ---------------------------------------------------------------- card_drift


@pytest.mark.parametrize("style", REPAIRED)
@pytest.mark.parametrize("source", [Source.CHECKPOINT, Source.PROCESS, Source.OWN_CHECKPOINT])
def test_annotations_are_made_to_name_the_gpu_that_the_container_has(style, source):
    train = pod(style=style)
    seen = on_node(train, statements=[kubelet_gave(train, style, source=source)])
    finding = only(gpu_drift, seen)
    assert (finding.rule, finding.cause) == (Rule.GPU_DRIFT, Cause.GPU_DIFFERS)
    assert (finding.effect, finding.skip_reason) == (Effect.REPAIR, None)
    assert finding.grace == Policy().ages.drift
    assert (finding.object_ref.kind, finding.object_ref.uid) == (ObjectKind.POD, train.ref.uid)
    assert says(edited(train, finding.action), style) == [("main", THERE, Phase.ASSIGNED)]
    text = "\n".join(finding.evidence)
    assert f"{source} of {train.ref.uid}" in text
    assert THERE in text
    assert "annotations of ml/train-0" in text


KEY = {
    "volcano": ("volcano.sh/vgpu-ids-new", f"{THERE},NVIDIA,8192,0:"),
    "hami": ("hami.io/vgpu-devices-allocated", f"{THERE},NVIDIA,8192,0:;"),
    "gpushare": ("ALIYUN_COM_GPU_MEM_IDX", "1"),
    "gaia": ("tencent.com/predicate-gpu-idx-0", "1"),
}


@pytest.mark.parametrize("style", REPAIRED)
def test_only_the_annotation_with_the_gpu_changes_and_the_before_image_is_exact(style):
    train = pod(style=style, annotations={"tencent.com/predicate-time": "1789996400000000007"})
    action = only(gpu_drift, on_node(train, statements=[kubelet_gave(train, style)])).action
    key, text = KEY[style]
    assert action.after == {key: text}
    assert action.before == {key: train.annotations[key]}
    assert action.resource_version == train.resource_version
    assert action.target.uid == train.ref.uid


def test_a_time_that_no_float_can_hold_is_not_rounded():
    train = pod(
        style="gpushare", annotations={"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1789996400000000007"}
    )
    action = only(gpu_drift, on_node(train, statements=[kubelet_gave(train, "gpushare")])).action
    assert action.after == {"ALIYUN_COM_GPU_MEM_IDX": "1"}


def test_both_forms_of_gpushare_are_kept_in_step():
    train = pod(
        style="gpushare",
        annotations={"scheduler.framework.gpushare.allocation": '{"0":{"0":8}}'},
    )
    action = only(gpu_drift, on_node(train, statements=[kubelet_gave(train, "gpushare")])).action
    assert action.after == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":8}}',
    }


def test_of_ack_alone_only_the_allocation_is_written():
    annotations = {
        "scheduler.framework.gpushare.allocation": '{"0":{"0":8}}',
        "scheduler.framework.gpushare.assigned": "true",
    }
    train = replace(pod(style="gpushare", claim=None, phase="Running"), annotations=annotations)
    action = only(gpu_drift, on_node(train, statements=[kubelet_gave(train, "gpushare")])).action
    assert action.after == {"scheduler.framework.gpushare.allocation": '{"0":{"1":8}}'}


@pytest.mark.parametrize("style", REPAIRED)
def test_a_pod_whose_annotations_are_right_is_not_found(style):
    train = pod(style=style)
    seen = on_node(train, statements=[kubelet_gave(train, style, gpu=0)])
    assert find(gpu_drift, seen) == find(recover, seen) == []


def with_minors(minors):
    """The GPUs of gpu-1, whose minor numbers these are."""
    return tuple(
        replace(gpu, minor=minor) for gpu, minor in zip(gpus("gpu-1"), minors, strict=False)
    )


def test_gpu_managers_number_is_the_minor_and_not_the_index():
    swapped = with_minors((1, 0))
    healthy = pod(style="gaia")  # of /dev/nvidia0, which is the second GPU to the driver
    seen = on_node(healthy, statements=[kubelet_gave(healthy, "gaia")], devices=swapped)
    assert find(gpu_drift, seen) == find(recover, seen) == []
    seen = on_node(healthy, statements=[kubelet_gave(healthy, "gaia", gpu=0)], devices=swapped)
    assert only(gpu_drift, seen).action.after == {"tencent.com/predicate-gpu-idx-0": "1"}


def test_gpushares_number_is_the_index_whatever_the_minors_are():
    train = pod(style="gpushare")
    swapped = with_minors((1, 0))
    seen = on_node(train, statements=[kubelet_gave(train, "gpushare", gpu=0)], devices=swapped)
    assert find(gpu_drift, seen) == []
    seen = on_node(train, statements=[kubelet_gave(train, "gpushare")], devices=swapped)
    assert only(gpu_drift, seen).action.after == {"ALIYUN_COM_GPU_MEM_IDX": "1"}


@pytest.mark.parametrize("minors", [(None, None), (None, 1), (1, None)])
def test_nothing_is_written_for_gpu_manager_while_the_minor_is_not_known(minors):
    train = pod(style="gaia")
    seen = on_node(train, statements=[kubelet_gave(train, "gaia")], devices=with_minors(minors))
    assert find(gpu_drift, seen) == []


@pytest.mark.parametrize("source", [Source.SHIM, Source.LIMIT_FILE])
def test_a_file_that_its_tenant_can_write_moves_nobody(source):
    train = pod()
    seen = on_node(train, statements=[statement(train, gpu=1, source=source)])
    kinds = {conflict.kind for conflict in seen.ledgers["gpu-1"].conflicts}
    assert kinds & {ConflictKind.GPU_DIFFERS, ConflictKind.FILE_DIFFERS}
    assert find(gpu_drift, seen) == []


def test_a_kubelet_that_does_not_name_a_gpu_moves_nobody():
    train = pod()
    seen = on_node(
        train,
        statements=[statement(train, gpu=None), statement(train, gpu=1, source=Source.SHIM)],
    )
    assert find(gpu_drift, seen) == []


def test_a_container_that_does_not_run_yet_is_left_to_its_plugin():
    train = replace(pod(phase="Pending"), statuses=(Status("main", ContainerState.WAITING),))
    assert find(gpu_drift, on_node(train, statements=[statement(train, gpu=1)])) == []


@pytest.mark.parametrize("style", REPAIRED)
def test_no_repair_allocates_more_of_a_gpu_than_there_is(style):
    train = pod(style=style)
    others = [
        pod(f"other-{number}", style, gpu=1, owner=owner(name=f"other-{number}"))
        for number in range(5)
    ]
    statements = [kubelet_gave(train, style)]
    statements += [kubelet_gave(other, style) for other in others]
    finding = only(gpu_drift, on_node(train, *others, statements=statements))
    assert finding.skip_reason is SkipReason.WOULD_OVERBOOK
    assert finding.action is not None
    assert any("48.0 GiB of 40.0 GiB memory" in line for line in finding.evidence)
    fits = only(gpu_drift, on_node(train, *others[1:], statements=statements))
    assert fits.skip_reason is None


def test_repairs_that_fit_one_by_one_but_not_together_are_not_proposed_together():
    moved = [pod(f"train-{number}") for number in range(2)]
    others = [pod(f"other-{number}", gpu=1) for number in range(4)]
    statements = [statement(each, gpu=1) for each in (*moved, *others)]
    findings = find(gpu_drift, on_node(*moved, *others, statements=statements))
    assert [finding.skip_reason for finding in findings] == [None, SkipReason.WOULD_OVERBOOK]


def test_a_repair_and_a_recovery_share_the_room():
    moved, late = pod("a-moved"), pod("b-late", claim=None, phase="Running")
    others = [pod(f"other-{number}", gpu=1) for number in range(4)]
    seen = on_node(
        moved, late, *others, statements=[statement(moved, gpu=1), statement(late, gpu=1)]
    )
    assert only(gpu_drift, seen).skip_reason is None
    assert only(recover, seen).skip_reason is SkipReason.WOULD_OVERBOOK


def test_what_kubeshare_has_of_a_gpu_counts_though_its_share_pods_are_not_seen():
    train = pod(gpu=1)
    sharers = [real_pod(share_pod(f"jupyter-{number}")) for number in range(5)]
    statements = [statement(train, gpu=0)]
    full = only(gpu_drift, on_node(train, *sharers, statements=statements))
    assert full.skip_reason is SkipReason.WOULD_OVERBOOK
    assert only(gpu_drift, on_node(train, *sharers[1:], statements=statements)).skip_reason is None


def test_crossed_pods_on_full_gpus_are_shown_but_neither_goes_first():
    left, right = pod("left", gpu=0), pod("right", gpu=1)
    fill = [pod(f"fill-{c}-{n}", gpu=c) for c in (0, 1) for n in range(4)]
    statements = [statement(left, gpu=1), statement(right, gpu=0)]
    findings = find(gpu_drift, on_node(left, right, *fill, statements=statements))
    assert [finding.skip_reason for finding in findings] == [SkipReason.WOULD_OVERBOOK] * 2


def test_pods_that_have_ended_take_no_room():
    train = pod()
    others = [pod(f"other-{number}", gpu=1) for number in range(5)]
    others[0] = ended(others[0])
    finding = only(gpu_drift, on_node(train, *others, statements=[statement(train, gpu=1)]))
    assert finding.skip_reason is None


def test_where_the_gpu_of_each_share_is_unknown_the_drift_is_only_reported():
    train = pod()
    statements = [statement(train, gpu=1, shares=(Share(HERE, SHARE), Share(THERE, SHARE)))]
    finding = only(gpu_drift, on_node(train, statements=statements))
    assert finding.action is None


def test_a_claim_of_more_shares_than_there_are_is_only_reported():
    two = {"volcano.sh/vgpu-ids-new": f"{HERE},NVIDIA,8192,0:" * 2}
    train = pod(annotations=two)
    finding = only(gpu_drift, on_node(train, statements=[statement(train, gpu=1)]))
    assert finding.action is None


def two_containers(style="volcano", **options):
    """A pod of two containers, one on each GPU by its annotations."""
    limits = pod(style=style).containers[0].limits
    names = ("one", "two")
    claim = Claim(
        SCHEMES[style],
        PodRef("two", "ml", "two"),
        "gpu-1",
        tuple(
            Allocation(
                name,
                (
                    Share(
                        str(at) if style == "gaia" else uuid("gpu-1", at),
                        SHARE,
                        200 if style == "gaia" else 0,
                    ),
                ),
                Phase.ASSIGNED,
            )
            for at, name in enumerate(names)
        ),
    )
    devices = {name: device for device in gpus("gpu-1") for name in device.names}
    return pod(
        "two",
        style,
        uid="two",
        claim=None,
        phase="Running",
        containers=tuple(Container(name, limits) for name in names),
        statuses=tuple(Status(name, ContainerState.RUNNING) for name in names),
        annotations=CODECS[style].annotations(claim, devices, names),
        **options,
    )


@pytest.mark.parametrize("style", ["volcano", "hami", "gaia"])
def test_crossed_containers_of_one_pod_are_put_right_at_once(style):
    train = two_containers(style)
    statements = [
        kubelet_gave(train, style, gpu=1, container="one"),
        kubelet_gave(train, style, gpu=0, container="two"),
    ]
    finding = only(gpu_drift, on_node(train, statements=statements))
    assert finding.skip_reason is None
    assert says(edited(train, finding.action), style) == [
        ("one", THERE, Phase.ASSIGNED),
        ("two", HERE, Phase.ASSIGNED),
    ]


def test_a_virtual_gpu_of_kubeshare_cannot_move():
    asked = share_pod()
    real = real_pod(asked)
    statements = [statement(real, "kubeshare", gpu=1, source=Source.PROCESS)]
    finding = only(gpu_drift, on_node(real, asked, statements=statements))
    assert finding.action is None
    assert finding.object_ref.uid == real.ref.uid


def test_a_part_of_a_gpu_in_mig_mode_is_only_reported():
    name = f"{HERE}[0-1]"
    train = pod()
    annotations = {"volcano.sh/vgpu-ids-new": f"{name},NVIDIA,8192,0:"}
    train = replace(train, annotations=train.annotations | annotations)
    assert only(gpu_drift, on_node(train, statements=[statement(train, gpu=1)])).action is None


def test_a_pod_that_the_snapshot_does_not_know_is_skipped():
    train = pod()
    seen = on_node(train, statements=[statement(train, gpu=1)])
    assert find(gpu_drift, replace(seen, pods=())) == []


@pytest.mark.parametrize("style", REPAIRED)
def test_after_the_repair_nothing_is_found_any_more(style):
    train = pod(style=style)
    statements = [kubelet_gave(train, style)]
    repaired = edited(train, only(gpu_drift, on_node(train, statements=statements)).action)
    seen = on_node(repaired, statements=statements)
    assert find(gpu_drift, seen) == find(recover, seen) == []


def test_the_plan_repairs_after_the_grace_and_skips_pods_that_opted_out():
    train = pod()
    seen = on_node(train, statements=[statement(train, gpu=1)])
    plan, memory = make_plan(seen, Policy(), ReconcilerState(), CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    later = replace(seen, now=NOW + HOUR)
    plan, _ = make_plan(later, Policy(), memory, CODECS_IN_USE)
    assert [entry.finding.rule for entry in plan.actions] == [Rule.GPU_DRIFT]
    out = replace(train, annotations=train.annotations | {"vgpu.dev/reconcile": "false"})
    plan, _ = make_plan(
        on_node(out, statements=[statement(out, gpu=1)]), Policy(), memory, CODECS_IN_USE
    )
    assert [entry.skip for entry in plan.skipped] == [SkipReason.OPTED_OUT]


# ---------------------------------------------------------------- recover: never marked as assigned


def forgotten(style="volcano", **options):
    """Promised GPU 0, and it runs; nobody has marked it as served."""
    return assumed(
        style=style,
        phase="Running",
        statuses=(Status("main", ContainerState.RUNNING),),
        started_at=STARTED,
        **options,
    )


STARTED = NOW - 3000
MARKS = {
    "volcano": {"volcano.sh/bind-phase": "success", "volcano.sh/vgpu-time": str(2**64 - 1)},
    "hami": {"hami.io/bind-phase": "success"},
    "gpushare": {
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(int(STARTED) * 10**9),
    },
    "gaia": {"tencent.com/gpu-assigned": "true"},
}


@pytest.mark.parametrize("style", REPAIRED)
@pytest.mark.parametrize("gpu", [0, 1])
def test_what_runs_is_marked_as_the_plugin_would_have_on_the_gpu_that_it_has(style, gpu):
    train = forgotten(style)
    seen = on_node(train, statements=[kubelet_gave(train, style, gpu)])
    assert find(gpu_drift, seen) == []
    finding = only(recover, seen)
    assert (finding.rule, finding.cause) == (Rule.RECOVER, Cause.RUNS_UNASSIGNED)
    assert (finding.effect, finding.skip_reason) == (Effect.REPAIR, None)
    assert MARKS[style].items() <= finding.action.after.items()
    repaired = edited(train, finding.action)
    assert says(repaired, style) == [("main", (HERE, THERE)[gpu], Phase.ASSIGNED)]
    assert CODECS[style].claim(repaired).unserved == ()
    key, moved = KEY[style]
    assert finding.action.after.get(key) == (moved if gpu else None)
    assert finding.action.before == {
        key: train.annotations.get(key) for key in finding.action.after
    }
    seen = on_node(repaired, statements=[kubelet_gave(repaired, style, gpu)])
    assert find(gpu_drift, seen) == find(recover, seen) == []


@pytest.mark.parametrize("style", REPAIRED)
def test_the_time_of_the_promise_stays_as_it_was(style):
    train = forgotten(style, annotations={"tencent.com/predicate-time": "1789996400000000007"})
    after = only(recover, on_node(train, statements=[kubelet_gave(train, style)])).action.after
    assert "tencent.com/predicate-time" not in after
    assert not {key for key in after if key.endswith("bind-time")}


@pytest.mark.parametrize("style", REPAIRED)
def test_without_a_word_of_the_node_the_gpu_is_not_known(style):
    train = forgotten(style)
    for seen in (
        snapshot(train),
        on_node(train),
        on_node(train, statements=[statement(train, style, gpu=1, source=Source.SHIM)]),
    ):
        finding = only(recover, seen)
        assert finding.skip_reason is SkipReason.NO_NODE_EVIDENCE
        assert finding.cause is Cause.RUNS_UNASSIGNED
        assert finding.action is not None


@pytest.mark.parametrize("style", REPAIRED)
def test_a_healthy_pod_needs_no_recovery(style):
    train = pod(style=style)
    assert find(recover, snapshot(train)) == []
    assert find(recover, on_node(train, statements=[kubelet_gave(train, style, 0)])) == []


@pytest.mark.parametrize("style", REPAIRED)
def test_a_promise_to_a_pod_that_does_not_run_is_not_ours_to_keep(style):
    waits = assumed(style=style)
    starts = replace(forgotten(style), statuses=(Status("main", ContainerState.WAITING),))
    for train in (waits, starts):
        assert find(recover, snapshot(train)) == []
        assert find(recover, on_node(train, statements=[kubelet_gave(train, style)])) == []


def test_a_pod_with_a_container_that_still_waits_is_skipped():
    train = two_containers("gaia")
    annotations = train.annotations | {"tencent.com/gpu-assigned": "false"}
    statuses = (Status("one", ContainerState.RUNNING), Status("two", ContainerState.WAITING))
    train = replace(train, annotations=annotations, statuses=statuses)
    statements = [kubelet_gave(train, "gaia", 0, container="one")]
    assert find(recover, on_node(train, statements=statements)) == []


def test_a_recovery_that_would_overbook_the_gpu_is_not_proposed():
    train = forgotten()
    others = [pod(f"other-{number}", gpu=1) for number in range(5)]
    finding = only(recover, on_node(train, *others, statements=[statement(train, gpu=1)]))
    assert finding.skip_reason is SkipReason.WOULD_OVERBOOK


# ---------------------------------------------------------------- recover: annotations lost


@pytest.mark.parametrize("style", REPAIRED)
@pytest.mark.parametrize("gpu", [0, 1])
def test_lost_annotations_of_a_running_pod_are_written_again(style, gpu):
    train = pod(style=style, claim=None, phase="Running")
    statements = [kubelet_gave(train, style, gpu)]
    finding = only(recover, on_node(train, statements=statements))
    assert (finding.rule, finding.cause) == (Rule.RECOVER, Cause.RUNS_UNCLAIMED)
    repaired = edited(train, finding.action)
    assert says(repaired, style) == [("main", (HERE, THERE)[gpu], Phase.ASSIGNED)]
    claim = CODECS[style].claim(repaired)
    assert claim.allocations[0].shares[0].memory_bytes == SHARE
    seen = on_node(repaired, statements=statements)
    assert find(gpu_drift, seen) == find(recover, seen) == []


def test_gpu_managers_own_repair_of_running_pods_is_done_too():
    train = replace(
        pod(style="gaia"),
        annotations={"tencent.com/gpu-assigned": "true", "tencent.com/predicate-node": "gpu-1"},
    )
    finding = only(recover, on_node(train, statements=[kubelet_gave(train, "gaia")]))
    assert finding.action.after == {"tencent.com/predicate-gpu-idx-0": "1"}


def test_annotations_that_cannot_be_read_are_written_again():
    train = pod(style="gaia", annotations={"tencent.com/predicate-gpu-idx-0": "x"})
    finding = only(recover, on_node(train, statements=[kubelet_gave(train, "gaia")]))
    assert finding.cause is Cause.MALFORMED
    assert finding.action.before == {"tencent.com/predicate-gpu-idx-0": "x"}
    assert finding.action.after == {"tencent.com/predicate-gpu-idx-0": "1"}


@pytest.mark.parametrize("style", REPAIRED)
@pytest.mark.parametrize("source", [Source.SHIM, Source.LIMIT_FILE])
def test_a_tenants_file_alone_recovers_nothing(style, source):
    train = pod(style=style, claim=None, phase="Running")
    assert (
        find(recover, on_node(train, statements=[statement(train, style, gpu=1, source=source)]))
        == []
    )


def test_the_only_gpu_of_gpushares_node_needs_no_annotation():
    train = pod(style="gpushare", claim=None, phase="Running")
    statements = [kubelet_gave(train, "gpushare", 0)]
    assert find(recover, on_node(train, statements=statements, devices=gpus("gpu-1")[:1])) == []


def test_a_whole_gpu_of_nvidias_own_plugin_is_nobodys_loss():
    train = pod(style="hami", claim=None, phase="Running")
    train = replace(train, containers=(Container("main", {"nvidia.com/gpu": 1}),))
    statements = [statement(train, "hami", scheme=Scheme.NONE, memory=None, cores=1000)]
    assert find(recover, on_node(train, statements=statements)) == []


def test_memory_that_the_scheduler_chose_is_taken_from_what_is_enforced():
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 25}
    train = pod(claim=None, phase="Running", containers=(Container("main", limits),))
    finding = only(recover, on_node(train, statements=[statement(train, memory=10 * GIB, gpu=1)]))
    (allocation,) = CODECS["volcano"].claim(edited(train, finding.action)).allocations
    assert allocation.shares == (Share(THERE, 10 * GIB, 0),)


def test_a_container_with_fewer_gpus_than_it_asked_for_is_no_case_for_repair():
    limits = {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 1024}
    train = pod(claim=None, phase="Running", containers=(Container("main", limits),))
    assert find(recover, on_node(train, statements=[statement(train, memory=GIB)])) == []


OLD = {"volcano.sh/gpu-memory": SHARE // MIB}


@pytest.mark.parametrize(("assigned", "rule"), [("true", gpu_drift), ("false", recover)])
def test_the_older_volcano_plugins_annotations_are_only_read(assigned, rule):
    annotations = {
        "volcano.sh/gpu-index": "0",
        "volcano.sh/gpu-assigned": assigned,
        "volcano.sh/predicate-time": "1789996400000000000",
    }
    train = pod(claim=None, phase="Running", containers=(Container("main", OLD),))
    train = replace(train, annotations=annotations)
    assert only(rule, on_node(train, statements=[statement(train, gpu=1)])).action is None


def test_what_the_older_volcano_plugin_has_lost_is_not_written_in_another_form():
    train = pod(claim=None, phase="Running", containers=(Container("main", OLD),))
    assert find(recover, on_node(train, statements=[statement(train, gpu=1)])) == []


# ---------------------------------------------------------------- gpu-manager's recovery


def test_after_gpu_managers_restart_only_the_living_pod_holds_its_gpu():
    """TestAllocatorRecover of gpu-manager: three GPUs in its checkpoint, two of the dead."""
    content = json.dumps(
        {
            "PodGPUMapping": {
                uid: {
                    "main": {
                        "Devices": [f"/dev/nvidia{gpu}"],
                        "Cores": 100,
                        "Memory": GAIA_MEMORY_BLOCK,
                    }
                }
                for gpu, uid in enumerate(("pending-uid", "failed-uid", "exited-uid"))
            }
        }
    ).encode()
    limits = {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 1}

    def made(uid, phase, **fields):
        return pod(
            uid,
            "gaia",
            uid=uid,
            claim=None,
            phase=phase,
            containers=(Container("main", limits),),
            **fields,
        )

    ended_container = (Status("main", ContainerState.TERMINATED),)
    pods = (
        made("pending-uid", "Pending"),
        made("failed-uid", "Failed"),
        made("exited-uid", "Running", deleted_at=NOW, statuses=ended_container),
    )
    six = tuple(Device(f"GPU-{at}", at, 8 * GIB, minor=at) for at in range(6))
    statements = tuple(
        Statement(
            Source.OWN_CHECKPOINT,
            PodRef(uid, "", ""),
            allocation.container,
            allocation.shares,
            Scheme.GAIA,
            allocation.phase,
        )
        for uid, allocations in parse_checkpoint(content).items()
        for allocation in allocations
    )
    merged = merge(
        Evidence(
            "gpu-1",
            six,
            statements=statements,
            pods=pods,
            pods_complete=True,
            read=frozenset(Source),
        )
    )
    assert [holding.pod.uid for holding in merged.holdings] == ["pending-uid"]
    assert [entry.free_cores_milli for entry in merged.devices] == [0] + [1000] * 5
    assert [entry.held.slots for entry in merged.devices] == [1] + [0] * 5


# ---------------------------------------------------------------- any statements


def any_look(random):
    """A node of pods in all styles, of which sources say anything."""
    pods, statements = [], []
    for number in range(random.randint(1, 6)):
        style = random.choice(REPAIRED)
        claim = random.choice([None, Phase.ASSUMED, Phase.ASSIGNED, Phase.ASSIGNED])
        one = pod(
            f"pod-{number}",
            style,
            gpu=random.randrange(2),
            claim=claim,
            phase=random.choice(["Running", "Running", "Running", "Pending", "Failed"]),
            statuses=(Status("main", random.choice([ContainerState.RUNNING, *ContainerState])),),
        )
        if random.random() < 0.2:
            one = terminating(one)
        if one.annotations and random.random() < 0.1:
            key = random.choice(sorted(one.annotations))
            one = replace(one, annotations=one.annotations | {key: random.choice(["", "x", "7"])})
        pods.append((one, style))
        for source in random.sample([*Source], random.randint(0, 3)):
            if source is not Source.ANNOTATIONS:
                gpu = random.choice([None, 0, 1, 1])
                memory = random.choice([SHARE, SHARE, 30 * GIB, None])
                statements.append(kubelet_gave(one, style, gpu, source=source, memory=memory))
    return pods, statements


SMALL = tuple(replace(device, memory_bytes=2 * SHARE) for device in gpus("gpu-1"))


def sums(pods):
    """By GPU, what all annotations together claim."""
    merged = ledger([one for one, _ in pods], devices=SMALL)
    return {entry.device.name: entry.held for entry in merged.devices}


@pytest.mark.slow
@for_all(st.randoms(use_true_random=False))
def test_no_set_of_repairs_raises_any_sum_above_its_gpu(random):
    pods, statements = any_look(random)
    seen = on_node(*(one for one, _ in pods), statements=statements, devices=SMALL)
    found = [*find(gpu_drift, seen), *find(recover, seen)]
    actions = {
        finding.object_ref.uid: finding.action
        for finding in found
        if finding.action and finding.skip_reason is None
    }
    done = {uid for uid in actions if random.random() < 0.7}  # a cycle may stop anywhere
    after = [
        (edited(one, actions[one.ref.uid]) if one.ref.uid in done else one, style)
        for one, style in pods
    ]
    before, now = sums(pods), sums(after)
    for name, held in now.items():
        rises = (
            held.memory_bytes > before[name].memory_bytes
            or held.cores_milli > before[name].cores_milli
            or held.slots > before[name].slots
        )
        fits = held.memory_bytes <= 2 * SHARE and held.cores_milli <= 1000 and held.slots <= 10
        assert fits or not rises


@pytest.mark.slow
@for_all(st.randoms(use_true_random=False))
def test_the_order_of_statements_makes_no_difference(random):
    pods, statements = any_look(random)
    ones = [one for one, _ in pods]
    first = on_node(*ones, statements=statements)
    random.shuffle(statements)
    random.shuffle(ones)
    second = on_node(*ones, statements=statements)
    for rule in (gpu_drift, recover):
        assert find(rule, first) == find(rule, second)


@for_all(st.randoms(use_true_random=False))
def test_every_repair_names_the_gpu_of_the_container_and_is_found_once(random):
    pods, statements = any_look(random)
    seen = on_node(*(one for one, _ in pods), statements=statements)
    known = {one.ref.uid: (one, style) for one, style in pods}
    for rule in (gpu_drift, recover):
        for finding in find(rule, seen):
            if finding.action is None or finding.skip_reason is SkipReason.NO_NODE_EVIDENCE:
                continue
            one, style = known[finding.object_ref.uid]
            holdings = seen.ledgers["gpu-1"].of_pod(one.ref.uid)
            shares = says(edited(one, finding.action), style)
            assert sorted(gpu for _, gpu, _ in shares) == sorted(
                holding.share.device for holding in holdings
            )
            assert finding.action.before.keys() == finding.action.after.keys()
