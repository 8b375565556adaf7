"""A device's health: what makes it bad, what does not, and how it becomes good again."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.health.device_health import Health, changes, heard, missed, seen
from deviceplugin.health.incident import LONGEST_RECOVERY, UnhealthyReason
from deviceplugin.health.rules import HealthRules
from vgpu.model.facts import Gpu, GpuSample, XidCount
from vgpu.model.reasons import Reason, Rejection

RULES = HealthRules(recovery=300, patience=4)
INTERVAL = 15
A, B = "GPU-a", "GPU-b"
WELL = {
    ("memory_total_bytes",): 80.0,
    ("ecc_errors", "uncorrected", "volatile"): 0,
    ("row_remap_pending",): 0,
    ("row_remap_failure",): 0,
    ("retired_pages_pending",): 0,
}
PENDING = {("row_remap_pending",): 1}


def gpu(uuid, index=0, readings=(), parent="", **info):
    return Gpu(uuid, index, info, {**WELL, **dict(readings)}, parent)


def errors(count):
    return {("ecc_errors", "uncorrected", "volatile"): count}


def both(a=(), b=()):
    return GpuSample((gpu(A, 0, a), gpu(B, 1, b)))


class Node:
    """Two GPUs, and a clock that goes on by an interval with each sample."""

    def __init__(self, sample=None, xids=(), rules=RULES):
        self.rules = rules
        self.now = 1000.0
        self.xids = {}
        self.health = Health.at_start(xids)
        self.seen(sample or both())

    def become(self, health):
        before, self.health = self.health, health
        return changes(before, health)

    def seen(self, sample=None):
        self.now += INTERVAL
        return self.become(seen(self.health, sample or both(), self.now, self.rules))

    def missed(self):
        self.now += INTERVAL
        return self.become(missed(self.health, "hangs", self.now, self.rules))

    def xid(self, device, xid):
        self.xids[device, xid] = self.xids.get((device, xid), 0) + 1
        counts = [XidCount(*key, count, 0.0) for key, count in self.xids.items()]
        return self.become(heard(self.health, counts, self.now, self.rules))

    @property
    def bad(self):
        return {uuid: set(v.reasons) for uuid, v in self.health.verdicts.items() if not v.healthy}

    def recovery(self, most=1000):
        """Seconds of good samples until all are healthy."""
        began = self.now
        for _ in range(most):
            if not self.bad:
                return self.now - began
            self.seen()
        raise AssertionError(self.bad)


# ---------------------------------------------------------------- events


def test_a_critical_xid_makes_its_gpu_unhealthy_and_no_other():
    node = Node()
    (change,) = node.xid(A, 79)
    assert node.bad == {A: {UnhealthyReason.XID}}
    assert (change.uuid, change.healthy, change.detail) == (A, False, "xid: XID 79")
    assert node.health.events == {(A, UnhealthyReason.XID): 1}


def test_an_ignored_xid_changes_nothing():
    node = Node()
    assert node.xid(A, 31) == ()
    assert (node.bad, node.health.events) == ({}, {})


def test_an_event_of_no_known_device_is_counted_and_blames_none():
    node = Node()
    assert node.xid("", 79) == ()
    assert node.bad == {}
    assert node.health.events == {("", UnhealthyReason.XID): 1}


def test_xids_from_before_the_start_do_not_count_unless_they_come_again():
    before = (XidCount(A, 79, 3, 0.0),)
    node = Node(xids=before)
    node.xids[A, 79] = 3
    node.become(heard(node.health, before, node.now, RULES))
    assert node.bad == {}
    node.xid(A, 79)
    assert node.bad == {A: {UnhealthyReason.XID}}
    assert node.health.events == {(A, UnhealthyReason.XID): 1}


def test_an_xid_that_comes_before_the_first_sample_is_not_lost():
    health = heard(Health.at_start(), [XidCount(A, 79, 1, 0.0)], 0.0, RULES)
    health = seen(health, both(), 1.0, RULES)
    assert not health.verdict(A).healthy
    assert health.verdict(B).healthy


def test_after_an_xid_a_gpu_recovers_when_it_was_quiet_for_long_enough():
    node = Node()
    node.xid(A, 79)
    assert 300 <= node.recovery() < 300 + 2 * INTERVAL


def test_another_xid_restarts_the_wait():
    node = Node()
    node.xid(A, 79)
    for _ in range(10):
        node.seen()
    node.xid(A, 79)
    assert node.recovery() >= 300


def test_each_further_incident_of_a_day_takes_twice_as_long_up_to_an_hour():
    node, waits = Node(), []
    for _ in range(6):
        node.xid(A, 79)
        waits.append(node.recovery())
    assert [round(wait / 300) for wait in waits] == [1, 2, 4, 8, 12, 12]
    node.now += 86400
    node.xid(A, 79)
    assert node.recovery() < 330


def test_a_gpu_that_is_quiet_because_nobody_asks_it_is_not_recovered():
    node = Node()
    node.xid(A, 79)
    node.now += 10_000
    node.missed()
    assert node.bad == {A: {UnhealthyReason.XID}}
    node.seen()
    assert node.bad == {A: {UnhealthyReason.XID}}
    node.seen()
    assert node.bad == {}


# ---------------------------------------------------------------- memory


def test_uncorrected_errors_of_before_are_not_new_ones():
    node = Node(both(errors(7)))
    node.seen(both(errors(7)))
    assert node.bad == {}


def test_new_uncorrected_errors_make_a_gpu_unhealthy_for_a_while():
    node = Node(both(errors(7)))
    (change,) = node.seen(both(errors(9)))
    assert node.bad == {A: {UnhealthyReason.ECC}}
    assert change.detail == "ecc_uncorrected: uncorrected memory errors rose from 7 to 9"
    began = node.now
    while node.bad:
        node.seen(both(errors(9)))
    assert node.now - began >= 300
    assert node.health.events == {(A, UnhealthyReason.ECC): 1}


def test_a_new_driver_counts_errors_from_nothing():
    node = Node(both(errors(7)))
    node.seen(both(errors(0)))
    assert node.bad == {}
    node.seen(both(errors(1)))
    assert node.bad == {A: {UnhealthyReason.ECC}}


def test_errors_are_compared_with_the_last_reported_count():
    node = Node(both(errors(7)))
    incomplete = {key: value for key, value in WELL.items() if key[0] != "ecc_errors"}
    node.seen(GpuSample((Gpu(A, 0, {}, incomplete), gpu(B, 1))))
    node.seen(both(errors(8)))
    assert node.bad == {A: {UnhealthyReason.ECC}}


def test_a_gpu_that_waits_for_a_reset_stays_unhealthy_until_it_had_it():
    node = Node(both(PENDING))  # from the first sample on: the plugin has only been restarted
    for _ in range(1000):
        node.seen(both(PENDING))
        assert node.bad == {A: {UnhealthyReason.ROW_REMAP_PENDING}}
    assert node.health.events == {(A, UnhealthyReason.ROW_REMAP_PENDING): 1}
    assert node.recovery() >= 300 - INTERVAL


def test_a_bad_reading_that_cannot_be_read_is_still_bad():
    node = Node(both(PENDING))
    without = {key: value for key, value in WELL.items() if key != ("row_remap_pending",)}
    sample = GpuSample((Gpu(A, 0, {}, without), gpu(B, 1)))
    for _ in range(1000):
        node.seen(sample)
    assert node.bad == {A: {UnhealthyReason.ROW_REMAP_PENDING}}


def test_all_checks_of_memory_can_be_switched_off():
    node = Node(both(PENDING), rules=HealthRules(memory_errors=False))
    node.seen(both(errors(5)))
    assert node.bad == {}


# ---------------------------------------------------------------- lost GPUs


def without_a(*rejections):
    return GpuSample((gpu(B, 1),), lost=(A,), rejections=rejections)


def test_a_lost_gpu_is_unhealthy_at_once_and_stays_known():
    node = Node()
    (change,) = node.seen(without_a(Rejection(A, Reason.GPU_LOST, "GPU_IS_LOST (15)")))
    assert node.bad == {A: {UnhealthyReason.LOST}}
    assert change.detail == "lost: GPU_IS_LOST (15)"
    assert [device.uuid for device in node.health.devices] == [A, B]
    node.seen(without_a())
    assert node.health.events == {(A, UnhealthyReason.LOST): 1}


def test_a_gpu_that_is_no_longer_listed_is_lost():
    node = Node()
    node.seen(GpuSample((gpu(B, 1),)))
    assert node.bad == {A: {UnhealthyReason.LOST}}


def test_no_verdict_changes_while_gpus_cannot_be_identified():
    node = Node()
    node.seen(GpuSample((gpu(B, 1),), complete=False))
    assert node.bad == {}


def test_a_lost_gpu_that_is_back_proves_itself_by_two_answers():
    node = Node()
    node.seen(without_a())
    node.seen()
    assert node.bad == {A: {UnhealthyReason.LOST}}
    (change,) = node.seen()
    assert node.bad == {}
    assert "it was lost: " in change.detail


def test_a_gpu_that_is_lost_again_and_again_takes_longer():
    node, waits = Node(), []
    for _ in range(4):
        node.seen(without_a())
        waits.append(node.recovery())
    assert [round(wait / 300) for wait in waits] == [0, 1, 2, 4]


def test_a_loss_with_an_xid_takes_as_long_as_the_xid():
    node = Node()
    node.xid(A, 79)
    node.seen(without_a())
    assert node.recovery() >= 300


def test_a_gpu_that_stops_reporting_its_memory_is_lost_and_keeps_its_size():
    node = Node()
    node.seen(GpuSample((Gpu(A, 0, {}, {}), gpu(B, 1))))
    assert node.bad == {A: {UnhealthyReason.LOST}}
    assert node.health.gpus[A].readings == WELL
    for _ in range(2):
        node.seen()
    assert node.bad == {}


def test_a_gpu_that_has_never_reported_its_memory_is_not_lost():
    node = Node(GpuSample((Gpu(A, 0, {}, {}), gpu(B, 1))))
    node.seen(GpuSample((Gpu(A, 0, {}, {}), gpu(B, 1))))
    assert node.bad == {}


def test_a_gpu_that_is_present_without_reporting_its_memory_is_not_back():
    node = Node()
    node.seen(without_a())
    for _ in range(10):
        node.seen(GpuSample((Gpu(A, 0, {}, {}), gpu(B, 1))))
    assert A in node.bad
    node.recovery()


# ---------------------------------------------------------------- the driver as a whole


def test_a_driver_that_fails_for_a_moment_takes_nothing_down():
    node = Node()
    for _ in range(5):
        for _ in range(RULES.patience - 1):
            assert node.missed() == ()
        node.seen()
    assert (node.bad, node.health.events) == ({}, {})


def test_a_driver_that_stays_silent_takes_all_down_and_gives_them_back():
    node = Node()
    for _ in range(RULES.patience - 1):
        node.missed()
    found = node.missed()
    assert node.bad == {A: {UnhealthyReason.DRIVER_SILENT}, B: {UnhealthyReason.DRIVER_SILENT}}
    assert {change.detail for change in found} == {
        "driver_silent: no answer 4 times in a row: hangs"
    }
    assert node.missed() == ()
    assert node.health.events == {
        (A, UnhealthyReason.DRIVER_SILENT): 1,
        (B, UnhealthyReason.DRIVER_SILENT): 1,
    }
    assert node.recovery() == 2 * INTERVAL


def test_the_drivers_silence_is_not_held_against_the_gpus_later():
    node = Node()
    for _ in range(3):
        for _ in range(RULES.patience):
            node.missed()
        assert node.recovery() == 2 * INTERVAL
    node.xid(A, 79)
    assert node.recovery() < 330


# ---------------------------------------------------------------- inventory


def test_a_new_gpu_joins_the_inventory_and_is_reported_as_found():
    health = seen(Health.at_start(), GpuSample((gpu(B, 1, name="H100"),)), 0.0, RULES)
    (change,) = changes(Health.at_start(), health)
    assert (change.uuid, change.healthy) == (B, True)
    assert change.detail == "found: H100 of 80 bytes at index 1"
    later = seen(health, both(), 1.0, RULES)
    assert [device.uuid for device in later.devices] == [B, A]
    assert A in {change.uuid for change in changes(health, later)}


def indices(node):
    return {device.uuid: device.index for device in node.health.devices}


def test_a_gpu_keeps_its_index_when_the_driver_gives_it_another():
    node = Node()
    assert node.seen(GpuSample((gpu(B, 0), gpu(A, 1)))) == ()
    assert indices(node) == {A: 0, B: 1}


def test_the_index_of_a_lost_gpu_is_nobody_elses():
    node = Node()
    node.seen(GpuSample((gpu(B, 0),)))
    assert indices(node) == {A: 0, B: 1}
    node.seen(GpuSample((gpu("GPU-new", 0), gpu(B, 1))))
    assert indices(node) == {A: 0, B: 1, "GPU-new": 2}
    node.seen(GpuSample((gpu("GPU-new", 0), gpu("GPU-far", 7), gpu(B, 1), gpu(A, 2))))
    assert indices(node) == {A: 0, B: 1, "GPU-new": 2, "GPU-far": 7}


def mig(*instances, **fields):
    parts = (gpu(name, index, parent=A) for index, name in enumerate(instances))
    return GpuSample((gpu(A, 0), *parts, gpu(B, 1)), **fields)


def test_what_is_held_against_a_gpu_is_held_against_its_mig_instances():
    node = Node(mig("MIG-0", "MIG-1"))
    node.xid(A, 79)
    assert set(node.bad) == {A, "MIG-0", "MIG-1"}
    assert [device.uuid for device in node.health.devices] == [A, "MIG-0", "MIG-1", B]


def test_a_mig_instance_that_is_gone_is_lost_alone():
    node = Node(mig("MIG-0", "MIG-1"))
    node.seen(mig("MIG-1"))
    assert node.bad == {"MIG-0": {UnhealthyReason.LOST}}


def test_mig_instances_that_could_not_be_listed_are_not_lost():
    node = Node(mig("MIG-0"))
    node.seen(mig(rejections=(Rejection(A, Reason.DRIVER_ERROR, "UNKNOWN (999)"),)))
    assert node.bad == {}


def test_the_mig_instances_of_a_lost_gpu_are_lost():
    node = Node(mig("MIG-0"))
    node.seen(without_a())
    assert node.bad == {A: {UnhealthyReason.LOST}, "MIG-0": {UnhealthyReason.LOST}}
    assert node.health.events == {(A, UnhealthyReason.LOST): 1, ("MIG-0", UnhealthyReason.LOST): 1}
    node = Node(mig("MIG-0"))  # and as long as another GPU cannot be identified
    node.seen(GpuSample((gpu(B, 1),), lost=(A,), complete=False))
    assert node.health.events == {(A, UnhealthyReason.LOST): 1, ("MIG-0", UnhealthyReason.LOST): 1}


# ---------------------------------------------------------------- in any order

READINGS = st.fixed_dictionaries(
    {},
    optional={
        ("ecc_errors", "uncorrected", "volatile"): st.integers(0, 3),
        ("row_remap_pending",): st.integers(0, 1),
        ("row_remap_failure",): st.integers(0, 1),
    },
)
GPU = st.one_of(st.just("lost"), READINGS)
XIDS = st.sampled_from([13, 31, 48, 79])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("seen"), GPU, GPU),
        st.tuples(st.just("missed")),
        st.tuples(st.just("xid"), st.sampled_from([A, B]), XIDS),
        st.tuples(st.just("xid"), st.just(""), XIDS),
        st.tuples(st.just("wait"), st.integers(0, 50_000)),
    ),
    max_size=30,
)


def sample_of(**states):
    there = {uuid: state for uuid, state in states.items() if state != "lost"}
    gpus = [gpu(f"GPU-{name}", "ab".index(name), state) for name, state in there.items()]
    return GpuSample(tuple(gpus), lost=tuple(f"GPU-{name}" for name in states if name not in there))


def take(node, step):
    match step:
        case "seen", a, b:
            return node.seen(sample_of(a=a, b=b))
        case "missed", *_:
            return node.missed()
        case "xid", device, xid:
            return node.xid(device, xid)
        case "wait", seconds:
            node.now += seconds
    return ()


def is_bad(state):
    return state == "lost" or any(
        state.get((name,)) for name in ("row_remap_pending", "row_remap_failure")
    )


@given(STEPS)
def test_no_device_is_healthy_while_anything_bad_is_seen(steps):
    node = Node()
    for step in steps:
        take(node, step)
        if step[0] == "seen":
            bad = {uuid for uuid, state in zip((A, B), step[1:], strict=True) if is_bad(state)}
            assert bad <= set(node.bad)
        if step[0] == "xid" and step[1] and RULES.counts(step[2]):
            assert UnhealthyReason.XID in node.bad[step[1]]
        if step[0] == "missed" and node.health.misses >= RULES.patience:
            assert set(node.bad) == {A, B}


@given(STEPS)
def test_every_device_recovers_in_bounded_time_after_the_last_bad_thing(steps):
    node = Node()
    for step in steps:
        take(node, step)
    # An hour, and one sample more: errors that the first good one no longer counts are not new.
    assert node.recovery() <= LONGEST_RECOVERY + 3 * INTERVAL
    assert node.seen() == ()


@given(STEPS)
def test_one_gpus_trouble_is_no_others(steps):
    alone, together = Node(), Node()
    for step in steps:
        take(together, step)
        if step[0] == "seen":
            take(alone, ("seen", step[1], {}))
        elif step[0] != "xid" or step[1] == A:
            take(alone, step)
        assert together.health.verdict(A) == alone.health.verdict(A)


@given(STEPS)
def test_events_of_no_known_device_change_no_verdict(steps):
    node, without = Node(), Node()
    for step in steps:
        found = take(node, step)
        if step[:2] == ("xid", ""):
            assert found == ()
        else:
            take(without, step)
    assert node.health.verdicts == without.health.verdicts


@given(STEPS)
def test_the_reported_changes_add_up_to_the_verdicts(steps):
    node = Node()
    reported_health = {A: True, B: True}
    for step in steps:
        reported_health |= {change.uuid: change.healthy for change in take(node, step)}
        assert reported_health == {
            uuid: verdict.healthy for uuid, verdict in node.health.verdicts.items()
        }


@given(st.permutations([(A, 48), (A, 79), (B, 79), ("", 62), (B, 31)]))
def test_the_order_of_events_does_not_matter(order):
    node = Node()
    for device, xid in order:
        node.xid(device, xid)
    assert node.bad == {A: {UnhealthyReason.XID}, B: {UnhealthyReason.XID}}
    assert node.health.events == {
        (A, UnhealthyReason.XID): 2,
        (B, UnhealthyReason.XID): 1,
        ("", UnhealthyReason.XID): 1,
    }
