"""What the plugin does in gpu-manager's stead: GPUs, claims, answers, marks on pods and nodes."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceplugin.adapters.gaia import GaiaAdapter
from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binding import bind
from deviceplugin.gaia.migration import parse_checkpoint
from deviceplugin.model import AdmittedPod, ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.scheme_adapter import Folder, SchemeAdapter
from tests.deviceplugin.gaia_pods import (
    ASSIGNED,
    AT,
    CORE,
    DEVICES,
    GPUS,
    INDEX,
    MEMORY,
    PREDICATE_NODE,
    PREDICATE_TIME,
    ROLE,
    SIX,
    asking,
    promised,
    wants,
)
from tests.support.plugin_pods import (
    NODE,
    NOW,
    admitted_pod_of,
    by_name,
    gpu,
    no_capacity,
    node,
    pod,
    with_marks,
)
from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import ContainerKind, Phase, PodRef
from vgpu.model.units import GAIA_MEMORY_BLOCK
from vgpu.schemes.codec import ContainerEdits, Mount
from vgpu.schemes.gaia.codec import Gaia

SPEAKS: SchemeAdapter = ROLE


def whole(device):
    return Share(SIX[device], None, 1000)


def part(device, cores, blocks):
    return Share(SIX[device], blocks * GAIA_MEMORY_BLOCK, 10 * cores)


def capacity(*shares, devices=DEVICES):
    """What others hold."""
    held = no_capacity(devices)
    for at, share in enumerate(shares):
        held = held.hold(f"other-{at}", (share,))
    return held


def claim(one, *held, adapter=ROLE, devices=DEVICES):
    return adapter.claim(one, NODE, devices, capacity(*held, devices=devices))


def gpus(allocations):
    """Container -> positions of its GPUs."""
    return {each.container: [SIX.index(s.device) for s in each.shares] for each in allocations}


def refusal(one, *held, **settings):
    with pytest.raises(BindRefused) as caught:
        claim(one, *held, **settings)
    return caught.value


def by_uuid(allocation, named):
    shares = tuple(replace(one, device=named[one.device].uuid) for one in allocation.shares)
    return replace(allocation, shares=shares)


# ---------------------------------------------------------------- GPUs


def test_a_gpu_is_counted_by_the_number_of_its_device_node():
    found = ROLE.devices([gpu("GPU-a", 0, minor="3"), gpu("GPU-b", 1, minor="0")])
    assert [(device.uuid, device.minor) for device in found] == [("GPU-b", 0), ("GPU-a", 3)]


def test_a_gpu_of_unknown_device_node_is_unhealthy_whatever_its_index_is():
    found = ROLE.devices([gpu("GPU-a", 0), gpu("GPU-b", 1, minor="0")])
    assert [(device.uuid, device.healthy) for device in found] == [
        ("GPU-b", True),
        ("GPU-a", False),
    ]


def test_gpus_that_mig_cuts_are_left_out():
    instance = gpu("MIG-1", 0, parent="GPU-a")
    whole_one = gpu("GPU-c", 2)
    found = ROLE.devices([gpu("GPU-a", 0), instance, gpu("GPU-b", 1, mig_mode=1.0), whole_one])
    assert [device.uuid for device in found] == ["GPU-c"]


# ---------------------------------------------------------------- claims


def test_the_promise_is_kept_where_the_original_would_choose_another_gpu():
    """T9, GM#18: share mode would pick GPU 0, and gpu-admission chose 5."""
    found = claim(asking((5, 3), indices=["5"]))
    assert found == (Allocation("c0", (part(5, 5, 3),), Phase.ASSIGNED),)


def test_the_order_of_promised_gpus_is_kept():
    assert gpus(claim(asking((200, 0), indices=["4,1"]))) == {"c0": [4, 1]}


@pytest.mark.parametrize(
    ("indices", "why", "words"),
    [
        (["7"], BindRefusal.UNKNOWN_DEVICE, "/dev/nvidia7"),
        (["0,1"], BindRefusal.MALFORMED, "reserved are 2"),
        (["x"], BindRefusal.MALFORMED, "not indices of GPUs"),
    ],
)
def test_an_illegal_promise_is_refused_in_words(indices, why, words):
    """T9: provoked with an index, since an honoured promise never fails otherwise."""
    refused = refusal(asking((5, 3), indices=indices))
    assert refused.why is why
    assert words in str(refused)


def test_a_promised_gpu_that_others_hold_is_refused_and_not_replaced():
    refused = refusal(asking((60, 3), indices=["0"]), part(0, 50, 1))
    assert refused.why is BindRefusal.NO_ROOM
    assert "/dev/nvidia0" in str(refused)


def test_a_promise_of_another_node_is_refused():
    one = asking((5, 3), indices=["5"], annotations={PREDICATE_NODE: "elsewhere"})
    assert refusal(one).why is BindRefusal.OTHER_NODE


def test_without_a_promise_the_plugin_chooses_for_all_containers_at_once():
    """The second container cannot have what the first one has."""
    found = claim(asking((100, 0), (100, 0), (60, 1), (60, 1)))
    chosen = [device for its in gpus(found).values() for device in its]
    assert len(set(chosen)) == 4


def test_gpus_that_are_near_to_one_another_are_chosen():
    """T1, T2: three of the four below one bridge; the pair that is still together."""
    assert gpus(claim(asking((300, 0)))) == {"c0": [0, 1, 2]}
    assert gpus(claim(asking((200, 0)), whole(2))) == {"c0": [0, 1]}


def test_links_are_understood_in_either_order():
    turned = {(two, one): level for (one, two), level in ROLE.links.items()}
    assert gpus(claim(asking((200, 0)), whole(4), adapter=replace(ROLE, links=turned))) == {
        "c0": [0, 1]
    }


def test_a_container_that_gpu_admission_passed_over_does_without_what_it_promised():
    one = asking((100, 0), (100, 0), indices=[None, "4"])
    held = [whole(device) for device in (0, 1, 2, 3)]
    assert gpus(claim(one, *held)) == {"c0": [5], "c1": [4]}


def test_sidecars_run_beside_the_others_and_init_containers_do_not():
    main = wants(100, name="main")
    sidecar = wants(100, name="side", kind=ContainerKind.SIDECAR)
    init = wants(100, name="init", kind=ContainerKind.INIT)
    found = gpus(claim(pod({}, main, init, sidecar)))
    assert found.keys() == {"main", "side"}
    assert found["main"] != found["side"]


def test_nothing_is_chosen_on_an_unhealthy_gpu():
    ill = tuple(replace(device, healthy=device.index not in (4, 5)) for device in DEVICES)
    assert gpus(claim(asking((100, 0)), devices=DEVICES)) == {"c0": [4]}
    assert gpus(claim(asking((100, 0)), devices=ill)) == {"c0": [0]}


@pytest.mark.parametrize(
    ("size", "adapter", "why", "words"),
    [
        ((700, 0), ROLE, BindRefusal.NO_ROOM, "no free node"),
        ((10, 65), ROLE, BindRefusal.NO_ROOM, "is larger than"),
        (
            (10, 1),
            replace(ROLE, share_mode=False),
            BindRefusal.NO_ROOM,
            "share mode is not enabled",
        ),
        ((150, 0), ROLE, BindRefusal.MALFORMED, "multiple of 100"),
        ((10, 0), ROLE, BindRefusal.MALFORMED, "needs cores and memory"),
    ],
)
def test_what_cannot_be_served_is_refused_in_the_originals_words(size, adapter, why, words):
    refused = refusal(asking(size), adapter=adapter)
    assert refused.why is why
    assert words in str(refused)


def test_asking_again_for_what_a_container_has_changes_nothing():
    """T10: the same pod and container, 600 cores, twice."""
    one = asking((600, 0), uid="u1")
    allocation_state = AllocationState.of(DEVICES)
    allocation_state = allocation_state.admitted(
        one, ROLE.claim(one, NODE, allocation_state.devices, allocation_state.capacity), NOW
    )
    ids = frozenset(f"{CORE}-{unit}" for unit in range(600))
    assignment = ContainerDevices("u1", "c0", ids, "name", ContainerEdits({}))
    requests = ROLE.codec.requests(one)
    first = allocation_state.bound(assignment, one, requests, NOW)
    assert first.bound(assignment, one, requests, NOW + 1) is first
    assert len(first.admitted_pods["u1"].bindings[0].shares) == 6
    with pytest.raises(BindRefused, match="no free node"):
        ROLE.claim(asking((100, 0), name="next"), NODE, first.devices, first.capacity)


def test_what_gpu_manager_gave_to_pods_that_are_gone_is_free():
    """T8: of its checkpoint's three pods one is alive; five GPUs are free, and GPU 0 is not."""
    entries = ",".join(
        f'"{uid}":{{"c":{{"Devices":["/dev/nvidia{device}"],"Cores":100,"Memory":268435456}}}}'
        for device, uid in enumerate(("pending-uid", "failed-uid", "exited-uid"))
    )
    kept = parse_checkpoint(f'{{"PodGPUMapping":{{{entries}}}}}'.encode())
    uuids = by_name(DEVICES)
    alive = [
        AdmittedPod(PodRef(uid, "ns", uid), tuple(by_uuid(one, uuids) for one in its), foreign=True)
        for uid, its in kept.items()
        if uid == "pending-uid"
    ]
    allocation_state, conflicts = AllocationState.over(DEVICES, alive)
    assert conflicts == ()
    assert allocation_state.capacity.free(SIX[0]).cores_milli == 0
    five = ROLE.claim(asking((500, 0)), NODE, allocation_state.devices, allocation_state.capacity)
    assert gpus(five) == {"c0": [1, 2, 3, 4, 5]}


@given(
    st.lists(st.tuples(st.sampled_from((5, 50, 100, 200)), st.integers(1, 20)), min_size=1),
    st.sets(st.integers(0, 5)),
)
def test_the_chosen_gpus_fit_into_the_allocation_state(sizes, taken):
    """However many containers ask: the allocation state never has to refuse what the role has
    chosen.
    """
    one = asking(*((cores, blocks if cores < 100 else 0) for cores, blocks in sizes))
    held = capacity(*map(whole, taken))
    found = ()
    with suppress(BindRefused):
        found = ROLE.claim(one, NODE, DEVICES, held)
    assert held.hold("u", tuple(share for each in found for share in each.shares))


def seated(*shares):
    """The allocation state of pods that are admitted already, whatever they hold; one a share."""
    held = enumerate(shares)
    allocations = [(Allocation("main", (share,), Phase.ASSIGNED), at) for at, share in held]
    return AllocationState.over(
        DEVICES,
        (
            AdmittedPod(PodRef(f"t{at}", "ns", f"t{at}"), (one,), since=at)
            for one, at in allocations
        ),
    )[0]


def bound(one, allocation_state):
    ids = frozenset({f"{CORE}-0"})
    return bind(
        ROLE,
        NODE,
        allocation_state,
        ContainerDevices("u1", "c0", ids, "name", ContainerEdits({})),
        one,
        now=NOW,
    )


def test_an_overcommitted_gpu_is_not_chosen():
    """Share mode would choose GPU 0: most of it is held, and yet enough is free."""
    allocation_state = seated(part(0, 50, 1), part(0, 60, 1))
    assert allocation_state.unbooked == {"t1"}
    found = bound(asking((20, 1), uid="u1"), allocation_state)
    assert found.admitted_pods["u1"].shares == (part(1, 20, 1),)


def test_what_was_promised_on_such_a_gpu_waits_until_there_is_room():
    allocation_state = seated(part(0, 50, 1), part(0, 60, 1))
    with pytest.raises(BindRefused, match="allocated beyond what it has") as caught:
        bound(asking((20, 1), uid="u1", indices=["0"]), allocation_state)
    assert caught.value.why is BindRefusal.NO_ROOM


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from((20, 60, 100))), max_size=12),
    st.sampled_from(((20, 1), (60, 1), (100, 0), (200, 0), (300, 0))),
)
def test_what_is_chosen_is_never_refused_for_what_those_hold_who_were_there(held, size):
    allocation_state = seated(*(part(device, cores, 1) for device, cores in held))
    found, detail = allocation_state, "no free node"
    try:
        found = bound(asking(size, uid="u1"), allocation_state)
    except BindRefused as error:
        detail = error.detail
    assert detail == "no free node"
    spent = {
        one.device
        for uid in allocation_state.unbooked
        for one in allocation_state.admitted_pods[uid].shares
    }
    assert not spent & {one.device for one in found.capacity.held.get("u1", ())}


# ---------------------------------------------------------------- answers


def test_a_container_gets_the_same_edits_as_from_the_original():
    adapter = GaiaAdapter(Gaia(limits_path="/vm", driver_path="/driver"))
    one = asking((50, 30), uid="u1")
    (allocation,) = claim(one, adapter=adapter)
    edits = adapter.edits(one, allocation, "any", by_name(DEVICES))
    assert edits.mounts == (
        Mount("/driver/nvidia", "/usr/local/nvidia", read_only=True),
        Mount("/vm/u1", "/etc/vcuda", read_only=True),
    )
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == SIX[0]
    assert edits.annotations[MEMORY] == str(30 * GAIA_MEMORY_BLOCK)
    assert adapter.late_env(edits.env) == {}
    assert adapter.folders(one.ref, "c0") == (Folder("/vm/u1", 0o755),)


def test_a_static_pods_limits_lie_where_the_kubelet_knows_it():
    one = asking((50, 30), uid="u1", annotations={"kubernetes.io/config.mirror": "ab" * 16})
    (allocation,) = claim(one)
    edits = ROLE.edits(one, allocation, "any", by_name(DEVICES))
    assert edits.mounts[1].host.endswith(f"/{'ab' * 16}")


def test_an_allocation_that_gpu_manager_cannot_express_is_malformed():
    strange = Allocation("c0", (part(0, 50, 1), part(1, 50, 1)), Phase.ASSIGNED)
    with pytest.raises(BindRefused) as caught:
        ROLE.edits(asking((50, 1)), strange, "any", by_name(DEVICES))
    assert caught.value.why is BindRefusal.MALFORMED


# ---------------------------------------------------------------- marks


def marks(one, *bound):
    admitted_pod = admitted_pod_of(one, claim(one), bound=bound)
    return ROLE.pod_annotations(one, admitted_pod, by_name(DEVICES), NOW + 60)


def test_a_promise_that_is_kept_is_assigned():
    assert marks(asking((50, 30), indices=["5"]), "c0") == {ASSIGNED: "true"}


def test_nothing_is_written_before_all_containers_are_bound():
    one = asking((50, 30), (50, 30), indices=["5", "4"])
    assert marks(one, "c0") == {}
    assert marks(one, "c0", "c1") == {ASSIGNED: "true"}


def test_the_plugins_choice_is_written_in_gpu_admissions_form():
    one = asking((200, 0), (50, 30))
    written = marks(one, "c0", "c1")
    assert written == {
        f"{INDEX}0": "0,1",
        f"{INDEX}1": "2",
        ASSIGNED: "true",
        PREDICATE_NODE: NODE,
        PREDICATE_TIME: str(int(NOW) * 10**9),
    }
    assert ROLE.codec.claim(with_marks(one, written)).remarks == ()


def test_what_was_written_is_not_written_again():
    one = asking((200, 0))
    written = with_marks(one, marks(one, "c0"))
    assert marks(written, "c0") == {}
    turned = with_marks(written, {f"{INDEX}0": "1,0"})
    admitted_pod = admitted_pod_of(written, claim(written), bound=["c0"])
    assert ROLE.pod_annotations(turned, admitted_pod, by_name(DEVICES), NOW) == {}


def test_the_time_of_the_promise_stays():
    written = with_marks(asking((50, 30), indices=["5"]), {PREDICATE_TIME: str(AT)})
    assert PREDICATE_TIME not in marks(written, "c0")


def test_a_gpu_that_is_lost_leaves_the_marks_as_they_are():
    one = asking((50, 30), indices=["5"])
    admitted_pod = admitted_pod_of(one, claim(one), bound=["c0"])
    assert ROLE.pod_annotations(one, admitted_pod, by_name(DEVICES[:5]), NOW) == {}


def test_admitted_pods_of_gpu_manager_are_skipped():
    one = asking((50, 30), indices=["5"])
    assert ROLE.pod_annotations(one, admitted_pod_of(one, claim(one), foreign=True), {}, NOW) == {}


def test_a_refusal_takes_no_promise_away():
    """The pod would get another GPU then."""
    assert ROLE.failure_annotations(asking((50, 30), indices=["7"])) == {}


def test_the_node_gets_labels_for_its_model_and_the_operators_settings():
    adapter = replace(ROLE, node_labels={"pool": "shared"})
    tesla = adapter.devices([gpu("GPU-a", 0, minor="0", name="NVIDIA Tesla V100")])
    written = adapter.node_annotations(node(), tesla, NOW)
    assert written.labels == {"gaia.tencent.com/gpu-model": "Tesla", "pool": "shared"}
    assert not adapter.node_annotations(node(labels=dict(written.labels)), tesla, NOW).labels
    assert adapter.node_annotations(node(), (), NOW).labels == {"pool": "shared"}


def test_a_model_of_two_words_is_not_reported():
    assert ROLE.node_annotations(node(), ROLE.devices(GPUS), NOW).labels == {}


def test_there_is_no_lock():
    assert ROLE.lock_to_release(node(), [asking((50, 30))], {"u1"}) is None


def test_promises_count_app_containers_only():
    """An index is of a place in the spec, so a container that asks for nothing has one."""
    idle = wants(0, name="idle")
    one = pod(promised(None, "3"), idle, wants(50, 30, name="main"))
    assert gpus(claim(one)) == {"main": [3]}
