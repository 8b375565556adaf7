"""Whatever happens to a node, the ledger made from what survives is true."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.ledger.ledger_values import A, B
from tests.ledger.ledger_world import CAPACITY, World
from vgpu.ledger import ConflictKind, merge
from vgpu.model.names import Source
from vgpu.model.objects import ContainerState
from vgpu.model.units import GIB

replace = msgspec.structs.replace


def places(ledger):
    """UID -> the devices that it holds."""
    found = {}
    for holding in ledger.holdings:
        found.setdefault(holding.pod.uid, set()).add(holding.share.device)
    return found


def of(ledger, kind):
    """UIDs that conflicts of a kind are about."""
    found = set()
    for conflict in ledger.conflicts:
        if conflict.kind is kind:
            found |= {conflict.pod.uid} if conflict.pod else set()
            found |= {statement.pod.uid for statement in conflict.statements}
    return found


def without(evidence, *sources):
    return replace(
        evidence,
        statements=tuple(
            statement for statement in evidence.statements if statement.source not in sources
        ),
        read=evidence.read - set(sources),
    )


gpus = st.sampled_from([A, B])
sizes = st.integers(1, 4)


class Node(RuleBasedStateMachine):
    """One step is one event anywhere; after each the ledger is recreated and compared."""

    def __init__(self):
        super().__init__()
        self.world = World()

    def pick(self, data, uids):
        return data.draw(st.sampled_from(sorted(uids)))

    @rule(gpu=gpus, gib=sizes)
    def a_pod_is_bound(self, gpu, gib):
        self.world.bind(gpu, gib)

    @rule(gpu=gpus, gib=sizes, crossed=st.sampled_from([False, False, True]))
    def a_pod_comes_and_runs(self, gpu, gib, crossed):
        self.world.up()
        uid = self.world.bind(gpu, gib)
        if uid:
            self.world.admit(uid, crossed=crossed)
            self.world.start(uid)

    @rule(gpu=gpus, gib=sizes)
    def a_pod_comes_and_has_yet_to_start(self, gpu, gib):
        uid = self.world.bind(gpu, gib)
        if uid:
            self.world.admit(uid, crossed=False)

    @precondition(lambda self: self.world.api)
    @rule(data=st.data())
    def a_pod_is_admitted_late(self, data):
        uid = self.pick(data, self.world.api)
        self.world.admit(uid, crossed=False)
        self.world.start(uid)

    @precondition(lambda self: self.world.api)
    @rule(data=st.data())
    def a_container_starts_again(self, data):
        self.world.start(self.pick(data, self.world.api))

    @precondition(lambda self: self.world.live)
    @rule(data=st.data())
    def a_container_is_killed(self, data):
        self.world.stop(self.pick(data, self.world.live))

    @precondition(lambda self: self.world.api)
    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def a_pod_ends(self, data, phase):
        self.world.finish(self.pick(data, self.world.api), phase)

    @precondition(lambda self: self.world.api)
    @rule(data=st.data())
    def a_pod_is_deleted(self, data):
        self.world.delete(self.pick(data, self.world.api))

    @precondition(lambda self: self.world.api)
    @rule(data=st.data(), force=st.booleans())
    def a_pods_object_goes(self, data, force):
        self.world.finalize(self.pick(data, self.world.api), force=force)

    @precondition(lambda self: self.world.cgroups)
    @rule(data=st.data())
    def a_cgroup_goes(self, data):
        self.world.remove_cgroup(self.pick(data, self.world.cgroups))

    @rule()
    def regions_are_collected(self):
        self.world.collect_regions()

    @rule()
    def the_plugin_goes(self):
        self.world.plugin_up = False

    @rule(lose=st.sampled_from([False, False, True]))
    def the_kubelet_restarts(self, lose):
        self.world.restart_kubelet(lose_checkpoint=lose)

    @rule()
    def kubelet_and_plugin_are_back(self):
        self.world.up()

    @rule()
    def the_node_reboots(self):
        self.world.reboot()

    # ------------------------------------------------------------ what is always true

    @invariant()
    def the_ledger_is_the_world(self):
        """Who holds what is exactly known: nobody is forgotten, nobody who is gone holds on."""
        ledger = merge(self.world.evidence())
        assert places(ledger) == {uid: {gpu} for uid, gpu in self.world.holders().items()}

    @invariant()
    def sums_are_those_of_the_holders(self):
        ledger = merge(self.world.evidence())
        holders = self.world.holders()
        for entry in ledger.devices:
            here = [uid for uid, gpu in holders.items() if gpu == entry.device.uuid]
            gib = sum(self.world.allocated.get(u, self.world.api.get(u)).gib for u in here)
            assert entry.held.memory_bytes == gib * GIB
            over = any(
                conflict.kind is ConflictKind.OVERCOMMITTED and conflict.device == entry.device.uuid
                for conflict in ledger.conflicts
            )
            assert over == (gib > CAPACITY[entry.device.uuid])

    @invariant()
    def the_gpu_of_a_live_container_is_never_free(self):
        """Not without the driver's processes, the kubelet's records or the API server."""
        evidence = self.world.evidence()
        kubelet = without(evidence, Source.CHECKPOINT, Source.POD_RESOURCES)
        for less in (
            without(evidence, Source.PROCESS),
            without(evidence, Source.SHIM),
            without(evidence, Source.ANNOTATIONS),
            without(evidence, Source.OWN_CHECKPOINT),
            kubelet,
            without(kubelet, Source.PROCESS, Source.OWN_CHECKPOINT),
            replace(without(evidence, Source.ANNOTATIONS), pods=(), pods_complete=False, wanted=()),
            replace(evidence, live_pods=None),
        ):
            found = places(merge(less))
            for uid in self.world.live:
                assert self.world.allocated[uid].gpu in found[uid]

    @invariant()
    def a_slice_has_two_holders_only_if_it_really_was_allocated_twice(self):
        evidence = self.world.evidence()
        ledger = merge(evidence)
        slices = {
            statement.pod.uid: statement.slices[0][1][0]
            for statement in evidence.statements
            if statement.slices
        }
        holders = self.world.holders()
        doubled = {
            one
            for one in holders
            for other in holders
            if one != other and one in slices and slices[one] == slices.get(other)
        }
        assert of(ledger, ConflictKind.DOUBLE_BOOKED) == doubled
        for uid in doubled:
            assert self.world.allocated[uid].device_id == slices[uid]

    @invariant()
    def what_the_plugin_crossed_is_a_conflict(self):
        ledger = merge(self.world.evidence())
        crossed = {
            uid
            for uid, gpu in self.world.holders().items()
            if uid in self.world.api and self.world.api[uid].gpu != gpu
        }
        by_files_alone = of(ledger, ConflictKind.FILE_DIFFERS)
        assert of(ledger, ConflictKind.GPU_DIFFERS) | by_files_alone == crossed
        assert by_files_alone.isdisjoint(self.world.live)

    @invariant()
    def what_runs_without_the_kubelets_knowledge_is_a_conflict(self):
        world = self.world
        known = set(world.checkpoint)
        if world.synced:
            known |= {uid for uid in world.admitted if world.active(uid)}
        running = {
            uid
            for uid, pod in world.api.items()
            if world.holds(uid) and pod.state is ContainerState.RUNNING
        }
        ledger = merge(world.evidence())
        assert of(ledger, ConflictKind.RUNNING_WITHOUT_DEVICE) == running - known

    @invariant()
    def what_outlives_its_pod_is_a_conflict(self):
        ledger = merge(self.world.evidence())
        outlives = {uid for uid in self.world.holders() if not self.world.holds(uid)}
        assert of(ledger, ConflictKind.OUTLIVES_POD) == outlives


Node.TestCase.settings = settings(stateful_step_count=30)
TestNode = pytest.mark.slow(Node.TestCase)
