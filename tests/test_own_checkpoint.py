"""Our own checkpoint's format, and the source that reads it for the other programs."""

import re
from contextlib import suppress
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.descriptors import no_descriptors
from tests.support.environment import GOLDEN_FILES
from vgpu.ledger import Statement
from vgpu.model.admitted_pod import AdmittedPod, Binding
from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.own_checkpoint import LIMIT, VERSION, Checkpoint, decode, encode, file_name
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import GIB
from vgpu.sources import own_checkpoint as source_module
from vgpu.sources.own_checkpoint import OwnCheckpointSource, boot_id

GOLDEN = GOLDEN_FILES / "device-plugin" / "checkpoint-volcano.json"
BEFORE_KINDS = GOLDEN_FILES / "device-plugin" / "checkpoint-volcano-before-kinds.json"
"""The same pods, by a plugin that kept neither when containers run nor ``initialized``."""

BOOT = "d41b3b16-8d57-4daf-8838-a7cb7443812a"
ONE = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
TWO = "GPU-b83f0d62-417e-4c9a-a5d8-e06b3f17c942"
NOW = 1_790_000_000.0


def assigned(container, *shares):
    return Allocation(container, shares, Phase.ASSIGNED)


TRAIN = AdmittedPod(
    PodRef("1b4e28ba-2fa1-11d2-883f-0016d3cca427", "ml", "train-0"),
    (assigned("main", Share(ONE, 4 * GIB, 300), Share(TWO, 4 * GIB, 300)),),
    (
        Binding("fetch", "aa0123456789abcdef012345", (Share(ONE, GIB, 300),), NOW - 50),
        Binding(
            "main",
            "bb0123456789abcdef012345",
            (Share(ONE, 4 * GIB, 300), Share(TWO, 4 * GIB, 300)),
            NOW - 49.5,
        ),
    ),
    since=NOW - 51,
)
WAITS = AdmittedPod(
    PodRef("2c5f39cb-3fb2-22e3-994f-1127e4ddb538", "ml", "infer-é"),
    (assigned("a", Share(TWO, 2 * GIB)), assigned("b", Share(TWO))),
    since=NOW - 3,
)
BEFORE_US = AdmittedPod(
    PodRef("3d604adc-4fc3-33f4-aa5f-2238f5eec649", "", ""),
    (assigned("main", Share(TWO, None, 1000)),),
    foreign=True,
    beside=(Share(ONE),),
)
HAMI = AdmittedPod(
    PodRef("4e715bde-50d4-44a5-bb60-3349f6ffd75a", "ml", "render-1"),
    (
        Allocation("fetch", (Share(ONE, GIB, 0),), Phase.ASSIGNED, ContainerKind.INIT),
        Allocation("watch", (Share(ONE, GIB, 0),), Phase.ASSIGNED, ContainerKind.SIDECAR),
        assigned("main", Share(ONE, 2 * GIB, 0)),
    ),
    since=NOW - 9,
    initialized=True,
)
KNOWN_BEFORE = (TRAIN, WAITS, BEFORE_US)
WHOLE = Checkpoint("node-1", Scheme.VOLCANO, BOOT, NOW, (*KNOWN_BEFORE, HAMI))


def read(content, scheme=Scheme.VOLCANO, node="node-1"):
    return decode(content, "/state/x", scheme, node)


def refused(content, **options):
    with pytest.raises(SourceError) as error:
        read(content, **options)
    assert error.value.object_name == "/state/x"
    return error.value


def signed(data):
    """With a digest that is right."""
    text = data if isinstance(data, bytes) else msgspec.json.encode(data)
    digest = sha256(text).hexdigest().encode()
    return b'{"version":1,"sha256":"%s","data":%s}' % (digest, text)


def plain(checkpoint=WHOLE):
    return msgspec.json.decode(msgspec.json.encode(checkpoint))


# ---------------------------------------------------------------- the format


def test_the_bytes_are_those_that_were_agreed():
    """What they say must be readable by the version before and after: change VERSION, or add."""
    assert encode(WHOLE) == GOLDEN.read_bytes()
    assert read(GOLDEN.read_bytes()) == WHOLE


def test_what_the_version_before_has_kept_is_read():
    assert read(BEFORE_KINDS.read_bytes()).admitted_pods == tuple(sorted(KNOWN_BEFORE, key=_pod))


def _pod(admitted_pod):
    return admitted_pod.pod


def test_the_order_of_the_admitted_pods_makes_no_difference():
    turned = msgspec.structs.replace(WHOLE, admitted_pods=WHOLE.admitted_pods[::-1])
    assert encode(turned) == encode(WHOLE)


texts = st.text(max_size=8)
amounts = st.none() | st.integers(0, 2**63)
shares = st.lists(st.builds(Share, texts.filter(bool), amounts, amounts), max_size=2).map(tuple)
times = st.floats(0, 1e12)
allocations = st.builds(
    Allocation, texts, shares, st.sampled_from(Phase), st.sampled_from(ContainerKind)
)
bindings = st.builds(Binding, texts, texts, shares, times)
admitted_pods = st.builds(
    AdmittedPod,
    st.builds(PodRef, texts.filter(bool), texts, texts),
    st.lists(allocations, max_size=2, unique_by=lambda one: one.container).map(tuple),
    st.lists(bindings, max_size=2, unique_by=lambda one: one.container).map(tuple),
    times,
    st.booleans(),
    shares,
)
checkpoints = st.builds(
    Checkpoint,
    texts.filter(bool),
    st.sampled_from(Scheme),
    texts,
    times,
    st.lists(admitted_pods, max_size=3, unique_by=lambda one: one.pod.uid).map(
        lambda those: tuple(sorted(those, key=lambda one: one.pod))
    ),
)


@given(checkpoints)
def test_what_is_written_is_read_again(checkpoint):
    content = encode(checkpoint)
    assert read(content, checkpoint.scheme, checkpoint.node) == checkpoint


@given(st.data())
def test_whatever_happens_to_the_bytes_is_noticed(data):
    content = bytearray(encode(WHOLE))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(at, len(content))) :]
    with suppress(SourceError):
        assert read(bytes(content)) == WHOLE


@given(st.binary(max_size=64))
def test_no_bytes_bring_another_error(content):
    assert refused(content).reason in (Reason.EMPTY, Reason.TRUNCATED, Reason.MALFORMED)


def test_each_damage_has_its_name():
    content = encode(WHOLE)
    assert refused(b"").reason is Reason.EMPTY
    assert refused(content[:-30]).reason is Reason.TRUNCATED
    assert refused(b"[]").reason is Reason.MALFORMED
    assert refused(b"[" * 100_000).reason in (Reason.MALFORMED, Reason.TRUNCATED)
    assert refused(content.replace(b"train-0", b"train-1")).reason is Reason.CHECKSUM_MISMATCH
    assert refused(content, node="node-2").reason is Reason.OTHER_NODE
    assert refused(content, scheme=Scheme.GAIA).reason is Reason.OTHER_SCHEME


def test_a_file_of_a_later_version_is_reported_as_such_whatever_else_is_in_it():
    error = refused(b'{"version":%d,"now":{"all":"is different"}}' % (VERSION + 1))
    assert error.reason is Reason.FUTURE_VERSION
    assert f"version is {VERSION + 1}" in error.detail
    assert refused(b'{"version":0}').reason is Reason.MALFORMED


def test_fields_of_a_later_program_are_passed_over():
    data = plain() | {"later": 1}
    data["tenants"][0]["bindings"][0]["later"] = [{}]
    assert read(signed(data)).admitted_pods == WHOLE.admitted_pods


def test_spaces_that_somebody_adds_to_the_data_are_noticed():
    content = encode(WHOLE).replace(b'"data":{', b'"data":{ ')
    assert refused(content).reason is Reason.CHECKSUM_MISMATCH


def broken(change):
    data = plain()
    change(data["tenants"])
    return signed(data)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda pods: pods.append(pods[0]), "1b4e28ba"),
        (lambda pods: pods[0]["pod"].update(uid=""), "without a UID"),
        (lambda pods: pods[1]["allocations"][1].update(container="a"), "'a'"),
        (lambda pods: pods[0]["bindings"][0].update(container="main"), "'main'"),
        (lambda pods: pods[0]["bindings"][0]["shares"][0].update(device=""), "1b4e28ba"),
        (lambda pods: pods[1]["allocations"][0]["shares"][0].update(memory_bytes=-1), "=-1"),
        (lambda pods: pods[1]["allocations"][0]["shares"][0].update(cores_milli=-1), "=-1"),
        (lambda pods: pods[2]["beside"][0].update(memory_bytes=-1), "3d604adc"),
        (lambda pods: pods[0].pop("pod"), "pod"),
    ],
)
def test_what_cannot_be_is_refused_though_its_digest_is_right(change, named):
    error = refused(broken(change))
    assert error.reason is Reason.MALFORMED
    assert named in error.detail


# ---------------------------------------------------------------- the source


class Node:
    """A node's folders."""

    def __init__(self, root):
        self.state = root / "state"
        self.state.mkdir()
        boot = root / "proc" / "sys" / "kernel" / "random" / "boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text(f"{BOOT}\n")
        self.boot = boot
        self.source = OwnCheckpointSource(str(self.state), str(root / "proc"))

    def put(self, checkpoint=WHOLE, scheme=None):
        path = self.state / file_name(scheme or checkpoint.scheme)
        path.write_bytes(encode(checkpoint))
        return path

    def sample(self):
        return self.source.sample(NOW)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def shares_by_container(sample):
    return {(one.pod.uid[:1], one.container): one.shares for one in sample.statements}


def test_every_container_is_a_statement(node):
    path = node.put()
    sample = node.sample()
    assert sample.rejections == ()
    by_name = {(one.pod.name, one.container): one for one in sample.statements}
    assert by_name["train-0", "main"] == Statement(
        source=Source.OWN_CHECKPOINT,
        pod=TRAIN.pod,
        container="main",
        shares=TRAIN.bindings[1].shares,
        scheme=Scheme.VOLCANO,
        phase=Phase.ASSIGNED,
        since=NOW - 49.5,
        where=str(path),
    )
    assert by_name["train-0", "fetch"].shares == (Share(ONE, GIB, 300),)
    assert by_name["infer-é", "b"].since == NOW - 3
    assert by_name["", "main"].since is None
    assert len(by_name) == len(sample.statements) == 8


def test_all_schemes_of_the_node_are_read(node):
    node.put()
    gaia = Checkpoint("node-1", Scheme.GAIA, BOOT, NOW, (BEFORE_US,))
    node.put(gaia)
    assert {one.scheme for one in node.sample().statements} == {Scheme.VOLCANO, Scheme.GAIA}


def test_a_node_without_our_plugin_is_nothing_wrong(tmp_path, node):
    assert node.sample().statements == ()
    missing = OwnCheckpointSource(str(tmp_path / "none"), str(tmp_path / "none"))
    assert missing.sample(NOW) == node.sample()


def test_what_was_written_before_the_node_started_has_no_information(node):
    node.put(msgspec.structs.replace(WHOLE, boot_id="before"))
    assert node.sample() == source_module.OwnSample(())


def test_where_the_boot_is_not_known_nothing_counts(node):
    node.put()
    node.boot.unlink()
    with pytest.raises(SourceError, match="boot_id"):
        node.sample()
    node.boot.write_text("")
    node.put()
    with pytest.raises(SourceError, match="boot_id"):
        node.sample()


def test_a_lack_of_descriptors_is_reported_as_such_and_passes(node):
    node.put()
    with no_descriptors(), pytest.raises(SourceError) as refused:
        node.sample()
    assert refused.value.reason is Reason.EXHAUSTED
    with no_descriptors(), pytest.raises(SourceError) as refused:
        boot_id()
    assert refused.value.reason is Reason.EXHAUSTED
    assert len(node.sample().statements) == 8


def test_one_that_cannot_be_read_costs_only_itself(node):
    node.put(scheme=Scheme.GPUSHARE)
    good = node.put()
    sample = node.sample()
    assert len(sample.statements) == 8
    (rejection,) = sample.rejections
    assert rejection.reason is Reason.OTHER_SCHEME
    assert rejection.object_name.endswith("checkpoint-gpushare.json")
    good.unlink()
    with pytest.raises(SourceError):
        node.sample()


def test_a_file_without_end_and_a_link_are_refused(node):
    with (node.state / "checkpoint-gaia.json").open("wb") as file:
        file.truncate(LIMIT + 1)
    (node.state / "checkpoint-volcano.json").symlink_to("checkpoint-gaia.json")
    node.put(Checkpoint("node-1", Scheme.GPUSHARE, BOOT, NOW, ()))
    reasons = {rejection.reason for rejection in node.sample().rejections}
    assert reasons == {Reason.TOO_LARGE, Reason.NOT_REGULAR_FILE}


def test_a_new_checkpoint_is_seen_and_an_old_one_is_not_read_again(node, monkeypatch):
    path = node.put()
    reads = []
    real = source_module.read_file
    monkeypatch.setattr(
        source_module, "read_file", lambda *args: reads.append(args[0]) or real(*args)
    )
    later = path.stat().st_mtime + 10
    for _ in range(3):
        assert len(node.source.sample(later).statements) == 8
    assert reads.count(str(path)) == 1
    path.unlink()
    node.put(msgspec.structs.replace(WHOLE, admitted_pods=(WAITS,)))
    assert len(node.source.sample(later).statements) == 2
    path.unlink()
    assert node.source.sample(later).statements == ()


def test_the_kernels_own_boot_id_can_be_read():
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot_id())
