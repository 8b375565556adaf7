"""A node's capacity: the holdings never exceed it, in any order of any operations."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from deviceplugin.capacity import CapacityError, CapacityRefusal, Free, NodeCapacity
from vgpu.model.allocation import Device, Share
from vgpu.model.units import GIB, WHOLE_DEVICE_MILLI, milli

GPU = Device(uuid="GPU-a", index=0, memory_bytes=16 * GIB, slots=3, handles=("zxcvb",))
OTHER = Device(uuid="GPU-b", index=1, memory_bytes=8 * GIB)
UNKNOWN = Device(uuid="GPU-c", index=2)


def capacity(*devices):
    return NodeCapacity.of(devices or (GPU, OTHER, UNKNOWN))


def refused(held, holder, *shares):
    """The error with which the capacity refuses these shares."""
    with pytest.raises(CapacityError) as error:
        held.hold(holder, shares)
    return error.value


def test_what_is_held_is_no_longer_free():
    held = capacity().hold("p", (Share("GPU-a", 4 * GIB, 300), Share("GPU-b", GIB)))
    assert held.free("GPU-a") == Free(12 * GIB, 700, 2)
    assert held.free("GPU-b") == Free(7 * GIB, 1000, None)


@pytest.mark.parametrize("name", ["GPU-a", "0", "zxcvb"])
def test_a_device_is_known_by_every_name(name):
    held = capacity().hold("p", (Share(name, GIB),))
    assert held.free("GPU-a").memory_bytes == held.free(name).memory_bytes == 15 * GIB


def test_the_earlier_allocations_are_not_changed():
    before = capacity()
    before.hold("p", (Share("GPU-a", GIB),))
    assert before == capacity()


@pytest.mark.parametrize(
    ("share", "reason", "asked", "free"),
    [
        (Share("0", 16 * GIB + 1), CapacityRefusal.MEMORY, 16 * GIB + 1, 16 * GIB),
        (Share("0", GIB, 1001), CapacityRefusal.CORES, 1001, 1000),
        (Share("2", GIB), CapacityRefusal.MEMORY, GIB, None),
        (Share("0", -1), CapacityRefusal.NEGATIVE, -1, None),
        (Share("0", 0, -1), CapacityRefusal.NEGATIVE, -1, None),
        (Share("9", GIB), CapacityRefusal.UNKNOWN_DEVICE, None, None),
    ],
)
def test_a_refusal_names_device_asked_and_free(share, reason, asked, free):
    error = refused(capacity(), "p", share)
    assert (error.reason, error.device, error.asked, error.free) == (
        reason,
        share.device,
        asked,
        free,
    )
    assert share.device in str(error)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Share("0", 17 * GIB), "asked 17.0 GiB, free 16.0 GiB"),
        (Share("0", 16 * GIB + 1), "asked 16.0 GiB (over 16384 MiB), free 16.0 GiB"),
        (Share("0", GIB, 1001), "asked 100.1 %, free 100 %"),
        (Share("2", GIB), "asked 1.0 GiB, free unknown"),
    ],
)
def test_refused_amounts_are_reported_for_people_and_exactly(share, words):
    assert str(refused(capacity(), "p", share)).endswith(words)


def test_slots_are_counted_for_every_share():
    held = capacity().hold("p", (Share("0", GIB), Share("0", GIB))).hold("q", (Share("0", 0),))
    error = refused(held, "r", Share("0", 0))
    assert (error.reason, error.asked, error.free) == (CapacityRefusal.SLOTS, 1, 0)


def test_of_several_shares_all_are_held_or_none():
    held = capacity().hold("p", (Share("GPU-b", 8 * GIB),))
    assert refused(held, "q", Share("GPU-a", GIB), Share("GPU-b", 1)).device == "GPU-b"
    assert held.free("GPU-a") == capacity().free("GPU-a")


def test_holding_the_same_again_changes_nothing():
    held = capacity().hold("p", (Share("0", GIB),))
    assert held.hold("p", (Share("0", GIB),)) == held


def test_holding_something_else_is_refused():
    held = capacity().hold("p", (Share("0", GIB),))
    assert refused(held, "p", Share("0", 2 * GIB)).reason is CapacityRefusal.HELD_OTHERWISE


def test_releasing_what_is_not_held_changes_nothing():
    assert capacity().release("p") == capacity()


def test_a_share_without_memory_takes_all_that_the_device_has():
    whole = capacity().hold("p", (Share("0", None, 1000),))
    assert whole.free("0").memory_bytes == 0
    assert refused(whole, "q", Share("0", 1)).reason is CapacityRefusal.MEMORY
    assert whole.release("p") == capacity()


def test_a_share_without_memory_is_refused_where_any_is_held():
    held = capacity().hold("p", (Share("0", 1),))
    error = refused(held, "q", Share("0"))
    assert (error.reason, error.asked, error.free) == (
        CapacityRefusal.MEMORY,
        16 * GIB,
        16 * GIB - 1,
    )


def test_unknown_memory_is_held_whole_by_one_or_not_at_all():
    held = capacity().hold("p", (Share("2"),))
    assert refused(held, "q", Share("2")).reason is CapacityRefusal.MEMORY
    assert refused(held, "q", Share("2", 1)).free == 0
    assert held.release("p") == capacity()


def test_a_share_without_cores_has_none_promised():
    assert capacity().hold("p", (Share("0", GIB, None),)).free("0").cores_milli == 1000


@pytest.mark.parametrize(
    "requests",
    [
        ("0.2", "0.4", "0.3", "0.1"),
        ("0.4", "0.2", "0.3", "0.1"),
        ("0.05",) * 20,
        ("0.04",) * 25,
        ("0.02",) * 50,
        ("0.01",) * 100,
        ("0.1",) * 10,
    ],
    ids=lambda requests: f"{len(requests)} x {requests[0]}",
)
def test_parts_that_make_a_whole_fit(requests):
    """K6: sums of floats pass 1.0 and refuse the last."""
    held = capacity(OTHER)
    for number, request in enumerate(requests):
        held = held.hold(number, (Share("1", 1, milli(request)),))
    assert held.free("1").cores_milli == 0
    assert refused(held, "more", Share("1", 0, 1)).reason is CapacityRefusal.CORES


def test_scaled_cores_are_those_of_the_device():
    scaled = Device(uuid="GPU-s", memory_bytes=GIB, cores_milli=2 * WHOLE_DEVICE_MILLI)
    assert capacity(scaled).hold("p", (Share("GPU-s", 0, 1500),)).free("GPU-s").cores_milli == 500


@pytest.mark.parametrize("devices", [(GPU, GPU), (Device(),), (Device(index=3), Device(index=3))])
def test_devices_with_the_same_name_are_refused(devices):
    with pytest.raises(CapacityError) as error:
        capacity(*devices)
    assert error.value.reason is CapacityRefusal.AMBIGUOUS_DEVICE


def test_a_name_that_two_devices_have_is_not_understood():
    twins = capacity(
        Device(uuid="MIG-1", index=0, memory_bytes=GIB),
        Device(uuid="MIG-2", index=0, memory_bytes=GIB),
    )
    assert refused(twins, "p", Share("0", 1)).reason is CapacityRefusal.AMBIGUOUS_DEVICE
    assert twins.hold("p", (Share("MIG-2", 1),)).free("MIG-2").memory_bytes == GIB - 1


DEVICES = (
    Device(uuid="GPU-a", index=0, memory_bytes=10, slots=3, handles=("h",)),
    Device(uuid="GPU-b", index=1, memory_bytes=8, cores_milli=2000),
    Device(uuid="GPU-c", index=2),
)
NAMES = {name: device for device in DEVICES for name in device.names}
SHARE = st.builds(
    Share,
    st.sampled_from(["GPU-a", "0", "h", "GPU-b", "1", "GPU-c"]),
    st.sampled_from([0, 1, 2, 3, 5, 8, None]),
    st.sampled_from([None, 0, 100, 300, 500, 600, 1000]),
)
WRONG = st.sampled_from([Share("nowhere", 1), Share("0", -1), Share("1", 0, -100), Share("2", 1)])
SHARES = st.lists(SHARE, min_size=1, max_size=2).map(tuple)
WRONG_TOO = st.tuples(SHARE, WRONG) | st.tuples(WRONG)
HOLDERS = st.integers(0, 6)


class CapacityMachine(RuleBasedStateMachine):
    """The capacity beside a plain dict of who holds what, whose sums are recreated each time."""

    def __init__(self):
        super().__init__()
        self.capacity = NodeCapacity.of(DEVICES)
        self.held = {}

    @rule(holder=HOLDERS, shares=SHARES | WRONG_TOO)
    def hold(self, holder, shares):
        before = self.capacity
        snapshot = (dict(before.held), dict(before.free_by_device))
        try:
            self.capacity = before.hold(holder, shares)
        except CapacityError:
            assert not self.fits(holder, shares)
        else:
            assert self.fits(holder, shares)
            self.held[holder] = shares
            if holder not in before.held:
                assert self.capacity.release(holder) == before
        assert (before.held, before.free_by_device) == snapshot

    @rule(holder=HOLDERS)
    def release(self, holder):
        self.capacity = self.capacity.release(holder)
        self.held.pop(holder, None)

    @rule()
    def hold_all_again(self):
        for holder, shares in self.held.items():
            assert self.capacity.hold(holder, shares) == self.capacity

    def fits(self, holder, shares):
        if holder in self.held:
            return self.held[holder] == shares
        if any(share.device not in NAMES for share in shares):
            return False
        if any((share.memory_bytes or 0) < 0 or (share.cores_milli or 0) < 0 for share in shares):
            return False
        return not overfull({**self.held, holder: shares})

    @invariant()
    def nothing_is_given_out_twice(self):
        assert not overfull(self.held)
        assert self.capacity.held == self.held

    @invariant()
    def what_is_free_is_the_rest(self):
        for device in DEVICES:
            memory, cores, slots = sums(self.held, device)
            free = self.capacity.free(device.uuid)
            assert free.cores_milli == device.cores_milli - cores
            assert free.slots == (None if device.slots is None else device.slots - slots)
            if device.memory_bytes is not None:
                assert free.memory_bytes == device.memory_bytes - memory


def sums(held, device):
    """Memory, cores and slots of the device that are held; whole is as much as there is."""
    of_device = [
        share for shares in held.values() for share in shares if NAMES[share.device] is device
    ]
    whole = device.memory_bytes or 0
    memory = sum(whole if s.memory_bytes is None else s.memory_bytes for s in of_device)
    return memory, sum(s.cores_milli or 0 for s in of_device), len(of_device)


def overfull(held):
    """Whether more of any device is held than there is of it."""
    for device in DEVICES:
        memory, cores, slots = sums(held, device)
        of_device = [s for each in held.values() for s in each if NAMES[s.device] is device]
        wholes = sum(share.memory_bytes is None for share in of_device)
        some = sum(bool(share.memory_bytes) for share in of_device)
        if wholes > 1 or (wholes and some) or (device.memory_bytes is None and some):
            return True
        if memory > (device.memory_bytes or 0) or cores > device.cores_milli:
            return True
        if device.slots is not None and slots > device.slots:
            return True
    return False


TestCapacityInAnyOrder = pytest.mark.slow(CapacityMachine.TestCase)
