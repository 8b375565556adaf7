"""What the ledger calls a conflict: reported with all evidence, acted on only where configured."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Evict, ObjectKind, Scope
from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.conflicts import (
    CAUSES,
    double_booked,
    lost_device,
    running_without_device,
    unowned_process,
)
from tests.reconciler.node_samples import SCHEMES, on_node, statement
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    GPU,
    HOUR,
    MINUTE,
    NOW,
    ended,
    gpus,
    node,
    owner,
    pod,
    real_pod,
    replace,
    share_pod,
    snapshot,
    terminating,
    uuid,
    with_ledgers,
)
from vgpu.ledger import ConflictKind, merge
from vgpu.ledger.node import NodeSamples, node_evidence
from vgpu.model.facts import Gpu, GpuSample
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.objects import MIRROR, Container, ContainerState, Status
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.model.units import GIB

RULES = (double_booked, running_without_device, lost_device, unowned_process)
STYLES = ("volcano", "hami", "gpushare", "gaia")
HERE, THERE = uuid("gpu-1", 0), uuid("gpu-1", 1)


def applied(rule):
    return Policy(modes={rule: Mode.APPLY})


def find(rule, seen, policy=None):
    return list(rule(ClusterIndex(seen, CODECS_IN_USE), policy or Policy()))


def only(rule, seen, policy=None):
    (finding,) = find(rule, seen, policy)
    return finding


def text(finding):
    return "\n".join(finding.evidence)


# ---------------------------------------------------------------- more than there is


def crowd(style="volcano", number=6, **options):
    """One more on GPU 0 than there is room for, each of another owner."""
    return [
        pod(f"train-{at}", style, owner=owner(name=f"train-{at}"), **options)
        for at in range(number)
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "look", [lambda style, *pods: with_ledgers(snapshot(node("gpu-1", style), *pods)), on_node]
)
def test_an_overcommitted_device_is_reported_with_all_its_holders(style, look):
    findings = find(double_booked, look(*([style] if look is not on_node else []), *crowd(style)))
    (finding,) = [each for each in findings if each.cause is Cause.OVERCOMMITTED]
    assert (finding.rule, finding.action) == (Rule.DOUBLE_BOOKED, None)
    assert finding.object_ref.kind is ObjectKind.POD
    evidence = text(finding)
    assert "48.0 GiB of 40.0 GiB memory" in evidence
    assert "40.0 GiB" in evidence
    for at in range(6):
        assert f"ml/train-{at}/main holds 8.0 GiB" in evidence


@pytest.mark.parametrize("style", STYLES)
def test_a_full_device_is_healthy(style):
    pods = crowd(style, 5)
    statements = [statement(each, style, cores=200 if style == "gaia" else None) for each in pods]
    for seen in (with_ledgers(snapshot(*pods)), on_node(*pods, statements=statements)):
        assert [finding for rule in RULES for finding in find(rule, seen)] == []


def test_the_youngest_of_the_least_priority_goes_and_nobody_else():
    pods = crowd()
    pods[1] = replace(pods[1], priority=-1, created_at=NOW - HOUR)
    pods[4] = replace(pods[4], priority=-1, created_at=NOW - MINUTE)
    pods[5] = replace(pods[5], created_at=NOW)
    finding = only(double_booked, on_node(*pods), applied(Rule.DOUBLE_BOOKED))
    assert finding.action == Evict(pods[4].ref, pods[4].resource_version)
    assert finding.object_ref.uid == pods[4].ref.uid
    assert finding.effect is Effect.RECOVERY
    assert finding.grace == Policy().ages.drift


def test_who_has_nothing_of_what_there_is_too_much_of_is_not_blamed():
    """gpushare counts no cores: its pod is no part of it, though it is the youngest."""
    large = [replace(gpu, memory_bytes=9 * GPU) for gpu in gpus("gpu-1")]
    guest = pod("guest", "gpushare", owner=owner(name="guest"), created_at=NOW)
    seen = on_node(*crowd("gaia"), guest, devices=large)
    finding = only(double_booked, seen, applied(Rule.DOUBLE_BOOKED))
    assert finding.object_ref.name.startswith("train-")
    assert "guest" not in text(finding)


@pytest.mark.parametrize("cores", [None, 1000], ids=["a replica", "a whole GPU"])
def test_of_a_gpu_that_two_sharing_systems_allocate_nobody_is_evicted(cores):
    """NVIDIA's plugin and a sharing system: the next pods would meet there again."""
    train = pod("train", owner=owner(name="train"))
    guest = replace(pod("guest", owner=owner(name="guest")), annotations={}, labels={})
    nvidias = statement(guest, memory=None, cores=cores, scheme=Scheme.named("nvidia"))
    seen = on_node(train, guest, statements=[statement(train), nvidias])
    findings = find(double_booked, seen, applied(Rule.DOUBLE_BOOKED))
    assert "several sharing systems allocate it: nvidia, volcano" in "\n".join(map(text, findings))
    assert {(each.action, each.object_ref.name) for each in findings} == {(None, HERE)}


def test_while_one_holder_is_on_its_way_no_other_is_sent_after_it():
    pods = crowd()
    pods[0] = terminating(replace(pods[0], priority=9))
    policy = applied(Rule.DOUBLE_BOOKED)
    plan, memory = make_plan(on_node(*pods), policy, ReconcilerState(), CODECS_IN_USE)
    plan, _ = make_plan(replace(on_node(*pods), now=NOW + HOUR), policy, memory, CODECS_IN_USE)
    assert plan.actions == ()
    assert [(entry.finding.object_ref.uid, entry.skip) for entry in plan.skipped] == [
        (pods[0].ref.uid, SkipReason.TERMINATING)
    ]


def test_a_victim_runs_and_is_evicted_all_the_same_once_the_rule_may():
    policy = applied(Rule.DOUBLE_BOOKED)
    pods = crowd()
    seen = on_node(*pods, statements=[statement(each) for each in pods])
    _, memory = make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)
    plan, _ = make_plan(replace(seen, now=NOW + HOUR), policy, memory, CODECS_IN_USE)
    assert len(plan.actions) == 1
    reported, _ = make_plan(seen, Policy(), memory, CODECS_IN_USE)
    assert (reported.actions, len(reported.findings)) == ((), 1)


def test_nobody_is_evicted_from_a_node_that_is_not_ready_on_the_api_servers_word_alone():
    seen = with_ledgers(snapshot(node(ready=False), *crowd()))
    finding = only(double_booked, seen, applied(Rule.DOUBLE_BOOKED))
    assert finding.skip_reason is SkipReason.NODE_NOT_READY


def test_two_crowded_devices_have_a_victim_each():
    pods = [*crowd(), *(replace(pod(f"more-{at}", gpu=1)) for at in range(6))]
    findings = find(double_booked, on_node(*pods), applied(Rule.DOUBLE_BOOKED))
    assert len(findings) == 2
    assert len({finding.object_ref.uid for finding in findings}) == 2


def test_a_pod_that_has_ended_crowds_nobody():
    pods = crowd()
    pods[3] = ended(pods[3])
    assert find(double_booked, on_node(*pods)) == []


def test_a_slice_with_two_holders_is_reported_with_both():
    pods = [pod("one"), pod("two", gpu=1)]
    slices = (("volcano.sh/vgpu-number", (f"{HERE}-0",)),)
    statements = [statement(each, gpu=gpu, slices=slices) for gpu, each in enumerate(pods)]
    finding = only(
        double_booked, on_node(*pods, statements=statements), applied(Rule.DOUBLE_BOOKED)
    )
    assert finding.cause is Cause.SAME_SLICE
    assert finding.object_ref.uid in {each.ref.uid for each in pods}
    evidence = text(finding)
    assert f"{HERE}-0" in evidence
    assert "ml/one/main holds" in evidence
    assert "ml/two/main holds" in evidence


def test_a_holder_that_the_snapshot_does_not_know_is_reported_with_the_device_and_never_evicted():
    seen = on_node(*crowd())
    finding = only(double_booked, replace(seen, pods=()), applied(Rule.DOUBLE_BOOKED))
    assert finding.action is None
    assert (finding.object_ref.kind, finding.object_ref.name) == (ObjectKind.DEVICE, HERE)
    assert finding.object_ref.node == "gpu-1"


def test_a_node_that_registers_more_than_its_gpu_has_means_it():
    scaled = [replace(device, memory_bytes=2 * GPU) for device in gpus("gpu-1")]
    registered = CODECS["volcano"].register(tuple(scaled))
    big = node("gpu-1", "volcano", annotations=registered)
    assert find(double_booked, with_ledgers(snapshot(big, *crowd()))) == []


def test_what_a_node_registers_counts_where_its_driver_is_asked_too():
    pods = crowd()
    gpu = GpuSample(
        gpus=tuple(
            Gpu(device.uuid, device.index, {"name": "A100"}, {("memory_total_bytes",): GPU})
            for device in gpus("gpu-1")
        )
    )
    known = {"node": "gpu-1", "gpu": gpu, "pods": pods}
    scaled = [replace(device, memory_bytes=2 * GPU) for device in gpus("gpu-1")]
    seen = snapshot(*pods, scope=Scope.NODE)
    plain = replace(
        seen, ledgers={"gpu-1": merge(node_evidence(CODECS_IN_USE, NodeSamples(**known)))}
    )
    meant = merge(node_evidence(CODECS_IN_USE, NodeSamples(**known, registered=scaled)))
    assert len(find(double_booked, plain)) == 1
    assert find(double_booked, replace(seen, ledgers={"gpu-1": meant})) == []


def test_without_the_nodes_own_register_too_much_may_be_meant():
    seen = replace(on_node(*crowd()), complete=frozenset({Coverage.PODS, Coverage.LEDGER}))
    finding = only(double_booked, seen, applied(Rule.DOUBLE_BOOKED))
    assert finding.skip_reason is SkipReason.INCOMPLETE_VIEW
    assert "may offer more" in text(finding)


# ---------------------------------------------------------------- runs without


@pytest.mark.parametrize("style", STYLES)
def test_a_pod_that_runs_without_the_kubelets_grant_is_reported_by_the_node(style):
    train = pod(style=style, claim=None, phase="Running")
    seen = on_node(train)
    finding = only(running_without_device, seen, applied(Rule.RUNNING_WITHOUT_DEVICE))
    assert finding.cause is Cause.NO_GRANT
    assert finding.action == Evict(train.ref, train.resource_version)
    assert only(running_without_device, seen).action is None
    assert find(running_without_device, on_node(train, statements=[statement(train, style)])) == []


@pytest.mark.parametrize("style", STYLES)
def test_a_pod_that_runs_without_a_claim_is_reported_by_the_cluster(style):
    train = pod(style=style, claim=None, phase="Running")
    seen = with_ledgers(snapshot(train))
    finding = only(running_without_device, seen, applied(Rule.RUNNING_WITHOUT_DEVICE))
    assert finding.cause is Cause.NO_CLAIM
    assert (finding.object_ref.uid, finding.skip_reason) == (train.ref.uid, None)
    assert isinstance(finding.action, Evict)
    assert "no annotation names a device" in text(finding)


@pytest.mark.parametrize("style", STYLES)
def test_who_waits_for_its_device_is_not_one_who_runs_without(style):
    waits = pod(style=style, claim=None, phase="Pending")
    assert find(running_without_device, with_ledgers(snapshot(waits))) == []
    assert find(running_without_device, with_ledgers(snapshot(pod(style=style)))) == []


def test_a_claim_that_cannot_be_read_is_not_one_that_is_not_there():
    train = pod(annotations={"volcano.sh/vgpu-ids-new": "x"})
    seen = with_ledgers(snapshot(train))
    finding = only(running_without_device, seen, applied(Rule.RUNNING_WITHOUT_DEVICE))
    assert (finding.cause, finding.action) == (Cause.MALFORMED, None)
    assert "volcano.sh/vgpu-ids-new" in text(finding)


def test_on_a_node_that_is_not_known_a_silent_grant_cannot_be_excluded():
    train = pod(style="gpushare", claim=None, phase="Running")
    seen = with_ledgers(snapshot(train))
    assert find(running_without_device, replace(seen, nodes=())) == []


def test_a_report_of_a_node_that_is_not_ready_is_no_reason_to_evict():
    train = pod(claim=None, phase="Running")
    seen = with_ledgers(snapshot(node(ready=False), train))
    finding = only(running_without_device, seen, applied(Rule.RUNNING_WITHOUT_DEVICE))
    assert finding.skip_reason is SkipReason.NODE_NOT_READY


def test_two_containers_without_a_device_are_one_finding():
    limits = pod().containers[0].limits
    train = pod(
        claim=None,
        phase="Running",
        containers=(Container("one", limits), Container("two", limits)),
        statuses=tuple(Status(name, ContainerState.RUNNING) for name in ("one", "two")),
    )
    finding = only(running_without_device, on_node(train))
    assert (
        only(running_without_device, with_ledgers(snapshot(train))).evidence[0]
        != (finding.evidence[0])
    )


# ---------------------------------------------------------------- lost devices


@pytest.mark.parametrize("style", STYLES)
def test_the_holder_of_a_device_that_no_longer_answers_is_reported(style):
    train = pod(style=style)
    seen = on_node(train, statements=[statement(train, style)], known={"lost": frozenset({HERE})})
    finding = only(lost_device, seen, applied(Rule.LOST_DEVICE))
    assert finding.cause is Cause.DEVICE_MISSING
    assert finding.object_ref.uid == train.ref.uid
    assert isinstance(finding.action, Evict)
    assert HERE in text(finding)
    assert f"kubelet-checkpoint of {train.ref.uid}" in text(finding)


def test_the_holder_of_an_unhealthy_device_is_reported_by_the_cluster_too():
    sick = tuple(replace(device, healthy=bool(device.index)) for device in gpus("gpu-1"))
    registered = CODECS["volcano"].register(sick)
    near, far = pod("near"), pod("far", gpu=1)
    seen = with_ledgers(snapshot(node("gpu-1", "volcano", annotations=registered), near, far))
    finding = only(lost_device, seen)
    assert (finding.cause, finding.object_ref.uid) == (Cause.DEVICE_UNHEALTHY, near.ref.uid)
    assert find(lost_device, on_node(near, far, devices=sick)) != []


def test_a_pod_on_two_lost_devices_is_one_finding():
    train = pod(annotations={"volcano.sh/vgpu-ids-new": f"{HERE},NVIDIA,1,0:{THERE},NVIDIA,1,0:"})
    finding = only(lost_device, on_node(train, known={"lost": frozenset({HERE, THERE})}))
    assert HERE in text(finding)
    assert THERE in text(finding)


# ---------------------------------------------------------------- processes of nobody


def test_a_process_in_no_container_is_reported_with_the_device():
    alone = replace(statement(pod(), source=Source.PROCESS), pod=PodRef("", "", ""), container="")
    process = replace(alone, alive=False, where="pid 4711")
    finding = only(unowned_process, on_node(statements=[process]), applied(Rule.UNOWNED_PROCESS))
    assert (finding.object_ref.kind, finding.object_ref.name) == (ObjectKind.DEVICE, HERE)
    assert (finding.object_ref.node, finding.action) == ("gpu-1", None)
    assert "pid 4711" in text(finding)


def test_two_processes_on_one_device_are_one_finding_and_on_two_nodes_two():
    alone = replace(statement(pod(), source=Source.PROCESS), pod=PodRef("", "", ""), container="")
    statements = [replace(alone, where=f"pid {pid}") for pid in (1, 2)]
    seen = on_node(statements=statements)
    finding = only(unowned_process, seen)
    assert "pid 1" in text(finding)
    assert "pid 2" in text(finding)
    both = {name: replace(seen.ledgers["gpu-1"], node=name) for name in ("gpu-1", "gpu-2")}
    findings = find(unowned_process, replace(seen, ledgers=both))
    assert len({each.object_ref.key for each in findings}) == len(findings) == 2


def test_a_container_on_a_device_not_allocated_to_it_is_reported_and_its_pod_may_be_evicted():
    train = pod(claim=None, phase="Running")
    seen = on_node(train, statements=[statement(train, source=Source.PROCESS, where="pid 12")])
    finding = only(unowned_process, seen, applied(Rule.UNOWNED_PROCESS))
    assert finding.cause is Cause.PROCESS_WITHOUT_ALLOCATION
    assert finding.action == Evict(train.ref, train.resource_version)
    assert "pid 12" in text(finding)
    unknown = only(unowned_process, replace(seen, pods=()), applied(Rule.UNOWNED_PROCESS))
    assert (unknown.action, unknown.object_ref.uid) == (None, train.ref.uid)


def of_resource_claim(holder, gpu=0):
    """The kubelet's state: a ResourceClaim has the whole GPU."""
    device = ResourceClaimDevice("c1", "train", "gpu.nvidia.com", "gpu-1", f"gpu-{gpu}")
    return replace(
        statement(holder, gpu=gpu, memory=None, source=Source.DRA_STATE),
        scheme=Scheme.DRA,
        resource_claim_devices=(device,),
    )


def test_the_pods_with_the_device_are_listed_beside_the_process_that_uses_it():
    """A ResourceClaim has the whole GPU: its own containers cannot use more, others can."""
    victim, intruder = pod("victim", claim=None), pod("intruder", claim=None, phase="Running")
    runs = [statement(each, source=Source.PROCESS, where="pid 12") for each in (victim, intruder)]
    seen = on_node(victim, intruder, statements=[of_resource_claim(victim), *runs])
    finding = only(unowned_process, seen)
    assert finding.cause is Cause.PROCESS_WITHOUT_ALLOCATION
    assert finding.object_ref.name == "intruder"
    assert f"{victim.ref.namespace}/victim/main holds" in text(finding)
    assert "of this GPU (process, dra-manager-state)" in text(finding)
    assert "intruder/main holds" not in text(finding)


def test_a_container_of_a_resource_claim_on_another_gpu_is_reported_and_stays():
    victim, intruder = pod("victim", claim=None), pod("intruder", claim=None)
    runs = statement(intruder, gpu=1, memory=None, source=Source.PROCESS, where="pid 12")
    statements = [of_resource_claim(victim, gpu=1), of_resource_claim(intruder), runs]
    finding = only(
        unowned_process,
        on_node(victim, intruder, statements=statements),
        applied(Rule.UNOWNED_PROCESS),
    )
    assert (finding.object_ref.name, finding.action) == ("intruder", None)
    assert "victim/main holds" in text(finding)
    unknown = only(unowned_process, on_node(statements=statements), applied(Rule.UNOWNED_PROCESS))
    assert (unknown.object_ref.name, unknown.action) == ("intruder", None)


def test_without_the_kubelets_checkpoint_no_process_counts_as_unowned():
    train = pod(claim=None, phase="Running")
    read = {"read": frozenset({Source.PROCESS, Source.ANNOTATIONS})}
    seen = on_node(train, statements=[statement(train, source=Source.PROCESS)], known=read)
    assert find(unowned_process, seen) == []


# ---------------------------------------------------------------- who is meant


def test_a_static_pod_is_known_by_the_uid_that_its_kubelet_has():
    static = pod(claim=None, phase="Running", annotations={MIRROR: "hash-of-its-file"})
    seen = on_node(static, statements=[statement(static, source=Source.PROCESS)])
    finding = only(unowned_process, seen, applied(Rule.UNOWNED_PROCESS))
    assert finding.object_ref.uid == static.ref.uid
    plan, _ = make_plan(seen, applied(Rule.UNOWNED_PROCESS), ReconcilerState(), CODECS_IN_USE)
    assert SkipReason.STATIC_POD in [entry.skip for entry in plan.skipped]


def test_a_share_pod_without_a_pod_is_nothing_that_could_be_evicted():
    waits = share_pod(served=False, bound=True)
    seen = on_node(waits, known={"lost": frozenset({HERE})})
    finding = only(lost_device, seen, applied(Rule.LOST_DEVICE))
    assert (finding.object_ref.kind, finding.action) == (ObjectKind.SHARE_POD, None)
    served = share_pod()
    real = real_pod(served)
    seen = on_node(real, served, known={"lost": frozenset({HERE})})
    finding = only(lost_device, seen, applied(Rule.LOST_DEVICE))
    assert (finding.object_ref.kind, finding.object_ref.uid) == (ObjectKind.POD, real.ref.uid)


def test_every_cause_of_the_table_belongs_to_a_rule_that_looks():
    rules = {Rule.DOUBLE_BOOKED, Rule.RUNNING_WITHOUT_DEVICE, Rule.LOST_DEVICE}
    assert {rule for rule, _ in CAUSES.values()} == rules | {Rule.UNOWNED_PROCESS}
    assert ConflictKind.GPU_DIFFERS not in CAUSES


# ---------------------------------------------------------------- any statements


def any_look(random):
    """A node with any statements about pods of all styles."""
    pods, statements = [], []
    for number in range(random.randint(0, 7)):
        style = random.choice(sorted(SCHEMES))
        claim = random.choice([None, Phase.ASSUMED, Phase.ASSIGNED])
        fields = {"priority": random.randint(-1, 1), "created_at": NOW - random.randint(0, 3)}
        one = pod(f"pod-{number}", style, claim=claim, gpu=random.randrange(2), **fields)
        if random.random() < 0.2:
            one = random.choice([ended, terminating])(one)
        pods.append(one)
        for source in random.sample([*Source], random.randint(0, 3)):
            slices = (("r/gpu", (random.choice("abc"),)),) if random.random() < 0.5 else ()
            gpu, memory = random.choice([None, 0, 1]), random.choice([GIB, 30 * GIB, None])
            statements.append(
                statement(one, style, gpu=gpu, source=source, memory=memory, slices=slices)
            )
    unhealthy = random.random() < 0.3
    devices = tuple(replace(gpu, healthy=not unhealthy) for gpu in gpus("gpu-1"))
    lost = frozenset(random.sample([HERE, THERE], random.randint(0, 1)))
    return pods, statements, {"devices": devices, "known": {"lost": lost}}


@pytest.mark.slow
@for_all(st.randoms(use_true_random=False))
def test_findings_are_in_any_order_the_same_each_object_once_and_always_with_evidence(random):
    pods, statements, known = any_look(random)
    first = on_node(*pods, statements=statements, **known)
    random.shuffle(pods)
    random.shuffle(statements)
    second = on_node(*pods, statements=statements, **known)
    for rule in RULES:
        for policy in (Policy(), Policy(modes=dict.fromkeys(Rule, Mode.APPLY))):
            findings = find(rule, first, policy)
            assert findings == find(rule, second, policy)
            keys = [(finding.cause, finding.object_ref.key) for finding in findings]
            assert len(set(keys)) == len(keys)
            for finding in findings:
                assert all(finding.evidence)
                assert finding.evidence
                assert finding.action is None or policy.modes
                assert finding.action is None or finding.action.pod.uid == finding.object_ref.uid


def test_evidence_names_a_gpu_once_and_no_raw_amount():
    pods = [pod(f"train-{number}") for number in range(6)]
    finding = only(double_booked, with_ledgers(snapshot(*pods)))
    assert finding.cause is Cause.OVERCOMMITTED
    assert text(finding).count(HERE) == 1
    assert text(finding).count("of this GPU") == 6
    assert "thousandths" not in text(finding)
    assert "bytes" not in text(finding)
