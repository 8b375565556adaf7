"""The pure core over a whole node, with everything that may happen to it in any order.

The promises, at every moment: no GPU is used beyond what it has; no container that runs is
forgotten; a container is created with just what its own pod was promised; one name is one
container's; and a allocation state that is recreated is the same allocation state.
"""

from random import Random

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.ended_pods import GRACE_SECONDS
from tests.deviceplugin.allocation_values import GPUS, INIT, A, B, C, replace, share
from tests.deviceplugin.node_model import NodeModel
from vgpu.model.names import ContainerKind
from vgpu.model.objects import holds_devices

APP = ContainerKind.APP
NAMES = ("web-0", "web-1", "")
"""Of pods, to be used again; "" is a fresh one."""

_RANDOM = Random(7)


def some_shares(most):
    gpus = _RANDOM.sample((A, B, C), _RANDOM.randint(1, most))
    return tuple(
        share(gpu, _RANDOM.choice((1, 3, 5)), percent)
        for percent in [_RANDOM.choice((0, 20, 50))]
        for gpu in gpus
    )


def some_containers():
    """One or two that ask, and now and then an init container or one that does not ask."""
    found = [(name, APP, some_shares(2)) for name in ("main", "side")[: _RANDOM.randint(1, 2)]]
    if _RANDOM.random() < 0.3:
        most = _RANDOM.choice(found)[2]
        asked = tuple(share(one.device, 1, 0) for one in most)
        found.append(("fetch", INIT, asked))
    return tuple(found)


PODS = [some_containers() for _ in range(200)]


class Plugin(RuleBasedStateMachine):
    """See the module. ``self.node`` is the model."""

    @initialize(
        cgroups=st.booleans(),
        processes=st.booleans(),
        originals=st.lists(
            st.tuples(st.sampled_from(PODS), st.sampled_from((A, B, C))), max_size=2
        ),
    )
    def begins(self, cgroups, processes, originals):
        self.node = NodeModel(GPUS, cgroups=cgroups, processes=processes)
        self.made = 0
        for containers, swapped in originals:
            # The original plugin takes equal sizes for one another, and then GPUs are swapped.
            small = [("main", APP, tuple(share(one.device, 1, 10) for one in containers[0][2]))]
            given = (share(swapped, 1, 10),) if len(small[0][2]) == 1 else ()
            self.node.original(self._uid(), small, "", given)
        assert self.node.boot(())

    def _uid(self):
        self.made += 1
        return f"{self.made:08x}-0000-4000-8000-000000000000"

    # ------------------------------------------------------------ what happens

    @rule(
        containers=st.sampled_from(PODS),
        name=st.sampled_from(NAMES),
        goes_on=st.sampled_from((True, True, False)),
    )
    def a_pod_is_bound_to_the_node(self, containers, name, goes_on):
        taken = {pod.ref.name for pod in self.node.pods.values()}
        assume(name not in taken and len(taken) < 8)
        self.node.create(self._uid(), containers, name)
        if goes_on:
            self.all_goes_well()

    @rule()
    def all_goes_well(self):
        """For a while: what waits is asked for, bound and started."""
        if self.node.state is not None:
            for place in self.node.admittable():
                self.node.admit(*place, heard=True)
            self.node.bind(None)
        for place in self.node.startable():
            self.node.start(*place)

    @precondition(lambda self: self.node.state and self.node.admittable())
    @rule(data=st.data(), heard=st.booleans())
    def the_kubelet_asks(self, data, heard):
        place = data.draw(st.sampled_from(self.node.admittable()))
        self.node.admit(*place, heard=heard)

    @precondition(lambda self: self.node.state and self.node.table)
    @rule(dies_at=st.sampled_from((None, 0, 1, 2)))
    def the_binder_looks(self, dies_at):
        self.node.bind(dies_at)

    @precondition(lambda self: self.node.startable())
    @rule(data=st.data())
    def a_container_starts(self, data):
        self.node.start(*data.draw(st.sampled_from(self.node.startable())))

    @precondition(lambda self: self.node.running)
    @rule(data=st.data())
    def a_container_ends(self, data):
        self.node.stop(*data.draw(st.sampled_from([*self.node.running])))

    @precondition(lambda self: self.node.pods)
    @rule(data=st.data())
    def deletion_begins(self, data):
        self.node.delete(data.draw(st.sampled_from([*self.node.pods])))

    @precondition(lambda self: self.node.pods)
    @rule(data=st.data(), kind=st.sampled_from(("removed", "Failed", "Succeeded")))
    def a_pod_is_over_and_its_containers_may_not_be(self, data, kind):
        uid = data.draw(st.sampled_from([*self.node.pods]))
        if kind == "removed":
            self.node.remove(uid)
        else:
            self.node.end(uid, kind)

    @precondition(lambda self: self.node.state)
    @rule(later=st.sampled_from((1.0, 10.0, 2 * GRACE_SECONDS)))
    def those_who_have_left_are_looked_for(self, later):
        self.node.now += later
        self.node.sweep()
        old = self.node.api and self.node.cgroups
        for uid, admitted_pod in self.node.state.allocation_state.admitted_pods.items():
            if old and self.node.now - admitted_pod.since > GRACE_SECONDS:
                assert self.node.is_live(uid)

    @rule(lost=st.sampled_from((A, "", "")), ill=st.sampled_from((B, C, "", "")))
    def devices_fail_and_come_back(self, lost, ill):
        there = (gpu for gpu in GPUS if gpu.uuid != lost)
        self.node.change(tuple(replace(gpu, healthy=gpu.uuid != ill) for gpu in there))

    @rule(heard=st.sampled_from((True, True, False)))
    def the_api_server_goes_or_comes(self, heard):
        self.node.api = heard

    @precondition(lambda self: self.node.state)
    @rule()
    def the_plugin_is_killed(self):
        self.node.kill()

    @precondition(lambda self: self.node.state is None)
    @rule(
        own=st.sampled_from(("newest", "newest", "the one before", "lost")),
        table=st.sampled_from((True, True, True, False)),
    )
    def the_plugin_starts(self, own, table):
        # Only the kubelet knows where the original plugin has really put its containers.
        table = table or not all(one.name for one in self.node.table.values())
        kept = {"newest": self.node.saved[-1:], "the one before": self.node.saved[-2:-1]}
        admitted_pods = next(iter(kept.get(own, ())), ())
        if self.node.boot(admitted_pods, table=table) and own == "newest":
            for admitted_pod in admitted_pods:
                if not admitted_pod.foreign and self.node.is_live(admitted_pod.pod.uid):
                    found = self.node.state.allocation_state.admitted_pods[admitted_pod.pod.uid]
                    assert replace(found, beside=()) == replace(admitted_pod, beside=())

    @rule(remembers=st.sampled_from((True, True, False)), gated=st.booleans())
    def the_kubelet_starts_anew(self, remembers, gated):
        """Until the plugin has registered again PreStartContainer is not called."""
        self.node.gated = gated
        # Without cgroups and this, a pod that was deleted by force cannot be noticed.
        if not remembers and self.node.cgroups:
            self.node.forget()

    @precondition(lambda self: not self.node.gated)
    @rule()
    def the_kubelet_knows_the_plugin_again(self):
        self.node.gated = True

    # ------------------------------------------------------------ what always holds

    @invariant()
    def no_gpu_is_used_beyond_what_it_has(self):
        for gpu in GPUS:
            used = [
                one
                for each in self.node.running.values()
                for one in each.shares
                if one.device == gpu.uuid
            ]
            assert sum(one.memory_bytes for one in used) <= gpu.memory_bytes
            assert sum(one.cores_milli for one in used) <= gpu.cores_milli
            assert len(used) <= gpu.slots

    @invariant()
    def no_container_that_runs_is_forgotten(self):
        if self.node.state is None:
            return
        allocation_state = self.node.state.allocation_state
        for (uid, container), one in self.node.running.items():
            held = [share.device for share in allocation_state.admitted_pods[uid].shares]
            assert {share.device for share in one.shares} <= {*held}
            booked = uid in allocation_state.unbooked or uid in allocation_state.capacity.held
            assert booked, container

    @invariant()
    def a_name_is_one_containers(self):
        if self.node.state is None:
            return
        owners = {one.name: key for key, one in self.node.table.items() if one.name}
        bound = [
            (one.name, (uid, one.container))
            for uid, admitted_pod in self.node.state.allocation_state.admitted_pods.items()
            for one in admitted_pod.bindings
        ]
        assert len({name for name, _ in bound}) == len(bound) == len({at for _, at in bound})
        assert all(owners.get(name, at) == at for name, at in bound)

    @invariant()
    def a_second_allocation_state_is_the_same(self):
        if self.node.state is not None:
            allocation_state = self.node.state.allocation_state
            assert (
                AllocationState.over(
                    allocation_state.devices, allocation_state.admitted_pods.values()
                )[0]
                == allocation_state
            )

    def teardown(self):
        """Whatever has happened: in the end who still lives gets what it was promised, or waits."""
        node = self.node
        node.api, node.gated = True, True
        node.change(GPUS)
        for place in [*node.running]:
            node.stop(*place)
        for uid in [uid for uid, pod in node.pods.items() if not holds_devices(pod)]:
            node.remove(uid)
        if node.state is None:
            assert node.boot(next(iter(node.saved[-1:]), ()))
        node.now += 2 * GRACE_SECONDS
        node.forget_the_dead()
        node.sweep()
        node.bind(None)
        assert set(node.state.allocation_state.admitted_pods) <= set(node.pods)
        for place in node.startable():
            refused = node.state.refusals.get(place)
            assert node.start(*place) == (refused is None)


@pytest.mark.slow
def test_whatever_happens_the_promises_hold():
    run_state_machine_as_test(Plugin, settings=settings(stateful_step_count=40))
