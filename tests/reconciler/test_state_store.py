"""Memory in a ConfigMap: a cache that nothing breaks, and two writers make more patient."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.reconciler_state import MOST, Attempt, ReconcilerState, decode, encode
from reconciler.state_store import CONFIG_MAP, KEY, ConfigMapStateStore, merge
from tests.reconciler.samples import replace
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import Reason, SourceError

MEMORY = ReconcilerState(
    seen={"a": 10.0, "b": 20.0}, failed={"a": 5.0}, attempts={"o@n": Attempt(2, 30.0)}
)
FORBIDDEN = ClusterError(403, "Forbidden", 'cannot get resource "configmaps"')
FAILURES = [
    FORBIDDEN,
    ClusterError(0, "Unreachable", "https://api: read timed out"),
    ClusterError(422, "Invalid", "must have at most 1048576 bytes"),
    SourceError(Reason.MALFORMED, "https://api", "no JSON"),
]


class Maps:
    """One ConfigMap, as the API server keeps it."""

    def __init__(self, data=None):
        self.data, self.version = data, 1 if data is not None else 0
        self.failure = None
        self.place = None

    def versioned_config_map(self, namespace, name):
        self._fail()
        self.place = (namespace, name)
        return None if self.data is None else (self.data, str(self.version))

    def write_config_map(self, namespace, name, data, resource_version):
        self._fail()
        if resource_version != (str(self.version) if self.data is not None else ""):
            raise ClusterError(409, "Conflict", "the object has been modified")
        self.place = (namespace, name)
        self.data, self.version = dict(data), self.version + 1
        return str(self.version)

    def _fail(self):
        if self.failure is not None:
            raise self.failure

    @property
    def kept(self):
        return decode(self.data[KEY])


def test_what_is_saved_is_loaded():
    maps = Maps()
    store = ConfigMapStateStore(maps, "ns")
    assert store.load() == ReconcilerState()
    assert store.save(MEMORY) == MEMORY
    assert maps.place == ("ns", CONFIG_MAP)
    assert ConfigMapStateStore(maps, "ns").load() == MEMORY


def test_it_is_saved_again_and_again():
    maps = Maps()
    store = ConfigMapStateStore(maps, "ns")
    for since in (1.0, 2.0, 3.0):
        store.save(ReconcilerState(seen={"a": since}))
        assert maps.kept.seen == {"a": since}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 99}', '{"seen": {"a": "b"}}', "\0", "null"]
)
def test_an_unreadable_state_is_forgotten_and_logged(text, caplog):
    maps = Maps({KEY: text})
    store = ConfigMapStateStore(maps, "ns")
    assert store.load() == ReconcilerState()
    assert "is unreadable; starting with empty state" in caplog.text
    store.save(MEMORY)
    assert maps.kept == MEMORY


@pytest.mark.parametrize("data", [{}, {"other": "x"}, {KEY: ""}, {KEY: encode(ReconcilerState())}])
def test_nothing_is_nothing(data, caplog):
    assert ConfigMapStateStore(Maps(data), "ns").load() == ReconcilerState()
    assert not caplog.text


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_failure_is_logged_once_and_the_run_goes_on(failure, caplog):
    maps = Maps()
    maps.failure = failure
    store = ConfigMapStateStore(maps, "ns")
    assert store.load() == ReconcilerState()
    caplog.clear()
    for _ in range(3):
        assert store.save(MEMORY) == MEMORY
    assert len(caplog.records) == 1
    assert [record.reason for record in caplog.records] == [str(failure)]
    maps.failure = None
    with caplog.at_level(logging.INFO):
        store.save(MEMORY)
    assert maps.kept == MEMORY
    assert "can be used again" in caplog.text


def test_two_writers_remember_together():
    maps = Maps()
    one, two = ConfigMapStateStore(maps, "ns"), ConfigMapStateStore(maps, "ns")
    one.load()
    two.load()
    one.save(ReconcilerState(seen={"a": 10.0, "b": 20.0}, attempts={"x": Attempt(1, 5.0)}))
    saved = two.save(ReconcilerState(seen={"a": 30.0, "c": 1.0}, attempts={"y": Attempt(1, 6.0)}))
    assert saved.seen == {"a": 30.0}
    assert saved.attempts == {"x": Attempt(1, 5.0), "y": Attempt(1, 6.0)}
    assert maps.kept == saved


def test_a_writer_that_is_outrun_twice_gives_up_for_now(caplog):
    maps = Maps({KEY: encode(MEMORY)})
    store = ConfigMapStateStore(maps, "ns")
    store.load()

    def outrun(*_):
        raise ClusterError(409, "Conflict", "the object has been modified")

    maps.write_config_map = outrun
    assert store.save(MEMORY) == MEMORY
    assert "the object has been modified" in caplog.records[-1].reason
    del maps.write_config_map
    maps.data = {KEY: encode(ReconcilerState(seen={"a": 99.0}))}
    maps.version += 1
    assert store.save(MEMORY).seen == {"a": 99.0}


def test_a_memory_that_could_not_be_loaded_does_not_overwrite_the_one_that_is_kept():
    maps = Maps({KEY: encode(MEMORY)})
    store = ConfigMapStateStore(maps, "ns")
    maps.failure = FORBIDDEN
    store.load()
    maps.failure = None
    store.save(ReconcilerState(seen={"a": 50.0}))
    assert maps.kept.attempts == MEMORY.attempts
    assert maps.kept.seen == {"a": 50.0}


def test_a_config_map_that_was_deleted_is_recreated():
    maps = Maps({KEY: encode(MEMORY)})
    store = ConfigMapStateStore(maps, "ns")
    store.load()
    maps.data = None
    store.save(MEMORY)
    assert maps.kept.attempts == MEMORY.attempts


# ---------------------------------------------------------------- merging

times = st.floats(0, 2e9)
keys = st.sampled_from("abcdef")
memories = st.builds(
    ReconcilerState,
    seen=st.dictionaries(keys, times),
    failed=st.dictionaries(keys, times),
    attempts=st.dictionaries(keys, st.builds(Attempt, st.integers(1, 40), times)),
)


@given(memories, memories)
def test_merged_memories_never_allow_what_one_of_them_did_not(one, other):
    both = merge(one, other)
    for each in (one, other):
        assert all(both.seen[key] >= each.seen[key] for key in both.seen)  # KeyError: seen by one
        assert all(both.failed[key] >= at for key, at in each.failed.items())
        for key, attempt in each.attempts.items():
            assert both.attempts[key].count >= attempt.count
            assert both.attempts[key].last >= attempt.last


@given(memories, memories)
def test_the_order_of_merging_does_not_matter(one, other):
    assert merge(one, other) == merge(other, one)
    assert merge(one, one) == one


@given(memories, memories)
def test_what_is_merged_can_be_kept(one, other):
    both = merge(one, other)
    assert decode(encode(both)) == both


def test_merging_stays_within_bounds_and_keeps_the_newest():
    one = ReconcilerState(attempts={f"a{n}": Attempt(1, float(n)) for n in range(MOST)})
    other = ReconcilerState(attempts={f"b{n}": Attempt(1, MOST + float(n)) for n in range(MOST)})
    assert merge(one, other).attempts == replace(other).attempts
    assert decode(encode(merge(one, other))) != ReconcilerState()
