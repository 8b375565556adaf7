"""What holds of every ledger, whatever the sources say."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.ledger_values import evidences, ref, statements, surroundings
from vgpu.ledger import ConflictKind, merge
from vgpu.ledger.precedence import resolve_fast, resolve_general
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import by_pod
from vgpu.model.names import Phase, Source
from vgpu.model.objects import holds_devices

replace = msgspec.structs.replace


def pairs(ledger):
    """Who holds which device, by pod."""
    return {(h.pod.uid, entry.device.name) for entry in ledger.devices for h in entry.holdings}


def disputed(ledger):
    """Who is on a device according to statements that better ones contradict."""
    return {
        (statement.pod.uid, entry.device.name)
        for entry in ledger.devices
        for statement in entry.disputed
    }


def holders(ledger):
    return {holding.pod.uid for holding in ledger.holdings}


def only_loses(before, after):
    assert holders(after) <= holders(before)
    assert pairs(after) <= pairs(before) | disputed(before)


@given(evidences, st.randoms(use_true_random=False))
def test_the_order_of_the_evidence_changes_nothing(evidence, random):
    def shuffled(values):
        return tuple(random.sample(values, len(values)))

    mixed = replace(
        evidence,
        devices=shuffled(evidence.devices),
        statements=shuffled(evidence.statements),
        pods=shuffled(evidence.pods),
        wanted=shuffled(evidence.wanted),
    )
    assert merge(mixed) == merge(evidence)


@given(evidences)
def test_repeated_statements_change_nothing(evidence):
    twice = replace(
        evidence,
        devices=evidence.devices * 2,
        statements=evidence.statements * 2,
        pods=evidence.pods * 2,
        wanted=evidence.wanted * 2,
    )
    assert merge(twice) == merge(evidence)


@given(evidences, st.sampled_from(Source))
def test_a_missing_source_adds_no_holder_and_gives_no_holder_a_device(evidence, source):
    without = replace(
        evidence,
        statements=tuple(
            statement for statement in evidence.statements if statement.source is not source
        ),
        read=evidence.read - {source},
    )
    only_loses(merge(evidence), merge(without))


@given(evidences)
def test_not_knowing_which_pods_have_a_cgroup_adds_no_holder(evidence):
    only_loses(merge(evidence), merge(replace(evidence, live_pods=None)))


@given(evidences)
def test_not_knowing_whether_these_are_all_the_pods_adds_no_holder(evidence):
    only_loses(merge(evidence), merge(replace(evidence, pods_complete=False)))


@given(evidences)
def test_without_the_api_server_only_what_the_node_shows_alive_holds_more(evidence):
    before, after = merge(evidence), merge(replace(evidence, pods=(), pods_complete=False))
    shown = {
        statement.pod.uid
        for statement in evidence.statements
        if statement.alive or statement.source is Source.POD_RESOURCES
    }
    shown |= evidence.live_pods or frozenset()
    assert holders(after) - holders(before) <= shown
    assert holders(after) <= shown | {""}


@given(evidences)
def test_a_pod_that_has_ended_holds_nothing_whatever_is_stated(evidence):
    over = {pod.ref.uid for pod in evidence.pods if not holds_devices(pod)}
    alive = {statement.pod.uid for statement in evidence.statements if statement.alive}
    assert not holders(merge(evidence)) & (over - alive)


@given(evidences)
def test_a_container_that_runs_on_a_device_holds_it_whatever_is_stated(evidence):
    found = pairs(merge(evidence))
    registry = Registry(evidence)
    for statement in evidence.statements:
        if statement.source is Source.PROCESS and (statement.pod.uid or statement.container):
            for device in set(registry.gpus(statement)) & registry.devices.keys():
                assert (statement.pod.uid, device) in found


@given(evidences)
def test_every_statement_about_a_device_is_kept_somewhere(evidence):
    """Nothing is hidden: a statement agrees, is disputed, unproven, left over or in a conflict."""
    ledger = merge(evidence)
    agreeing = {(h.pod.uid, source) for h in ledger.holdings for source in h.sources}
    kept = {
        (statement.pod.uid, statement.source)
        for those in (
            ledger.unproven,
            ledger.leftovers,
            *(entry.disputed for entry in ledger.devices),
            *(conflict.statements for conflict in ledger.conflicts),
        )
        for statement in those
    }
    for statement in evidence.statements:
        if statement.shares and statement.phase is not Phase.RELEASED:
            assert (statement.pod.uid, statement.source) in agreeing | kept


@given(evidences)
def test_a_device_bears_no_more_than_it_has_unless_that_is_a_conflict(evidence):
    ledger = merge(evidence)
    reported = {
        conflict.device
        for conflict in ledger.conflicts
        if conflict.kind is ConflictKind.OVERCOMMITTED
    }
    for entry in ledger.devices:
        memory, cores = entry.device.memory_bytes, entry.device.cores_milli
        too_much = entry.held.memory_bytes > (memory or entry.held.memory_bytes)
        too_much |= entry.held.cores_milli > cores
        assert too_much == (entry.device.name in reported)


@given(evidences)
def test_no_slice_has_two_holders_unless_that_is_a_conflict(evidence):
    ledger = merge(evidence)
    holding = {(h.pod.uid, h.container) for h in ledger.holdings}
    owners = {}
    for statement in evidence.statements:
        if (
            statement.phase is not Phase.RELEASED
            and (statement.pod.uid, statement.container) in holding
        ):
            for resource, ids in statement.slices:
                for one in ids:
                    owners.setdefault((resource, one), set()).add(statement.pod.uid)
    doubled = {one for one, uids in owners.items() if len(uids) > 1}
    reported = [c for c in ledger.conflicts if c.kind is ConflictKind.DOUBLE_BOOKED]
    for resource, one in doubled:
        assert any(resource in conflict.detail and one in conflict.detail for conflict in reported)


@given(st.lists(statements, min_size=1, max_size=4), surroundings)
def test_the_short_way_of_settling_a_container_finds_what_the_long_one_does(drawn, around):
    registry = Registry(around)
    one = tuple(replace(statement, pod=ref("u1"), container="main") for statement in drawn)
    for those in by_pod(one).get("u1", {}).values():
        short = resolve_fast(those, registry)
        assert short is None or short == resolve_general(those, registry)
