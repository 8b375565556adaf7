"""Gemini's files on a node: what they have, that their readers notice them, that none is lost."""

import contextlib
import ctypes
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kubeshare.node_component import held_uuid
from kubeshare.node_files import CONFIG, PORTS, GeminiFolder, tables_of, with_unread, write_address
from kubeshare.tenant_identity import TENANTS, parse_identities
from tests.kubeshare.model_cluster import share_pod
from vgpu.model.facts import Grant
from vgpu.model.reasons import SourceError
from vgpu.schemes.kubeshare.gemini_config import (
    client_name,
    format_ports,
    parse_config,
    parse_ports,
)

A, B = "GPU-a", "GPU-b"
CLOSE_WRITE, MOVED_TO = 0x8, 0x80


def bound(name, uuid=A, port=50051, node="n1", **changes):
    stored = share_pod(name, node=node, gpuid="abcde")
    return structs.replace(stored, bound=uuid, port=port, **changes)


def phase(stored, phase, policy):
    pod = structs.replace(stored.pod, phase=phase, restart_policy=policy)
    return structs.replace(stored, pod=pod)


def test_a_gpu_has_its_bound_share_pods_and_no_others():
    share_pods = [
        bound("b", port=50052),
        bound("a"),
        bound("elsewhere", node="n2"),
        bound("waiting", uuid="", port=0),
        bound("other", uuid=B, port=50053),
        phase(bound("over", port=50054), "Succeeded", "Never"),
    ]
    tables = tables_of(share_pods, "n1")
    assert {uuid: [pod.pod for pod in table.pods] for uuid, table in tables.items()} == {
        A: ["a", "b"],
        B: ["other"],
    }
    assert [port.port for port in tables[A].ports] == [50051, 50052]


def test_the_files_are_as_kubeshare_1_writes_them(tmp_path):
    folder = GeminiFolder(tmp_path)
    assert folder.write(tables_of([bound("a"), bound("b", port=50052)], "n1")) == 3
    assert (tmp_path / CONFIG / A).read_text() == (
        "2\nns/a 0.500000 1.000000 1073741824\nns/b 0.500000 1.000000 1073741824\n"
    )
    assert (tmp_path / PORTS / A).read_text() == "2\nns/a 50051\nns/b 50052\n"
    assert folder.write(tables_of([bound("a"), bound("b", port=50052)], "n1")) == 0


LONG = "trainer-of-a-model-with-a-long-name-7d9c5b7f4-x2x7k"


def test_a_pod_whose_name_is_too_long_for_gemini_has_a_key(tmp_path):
    stored = bound("a")
    ref = structs.replace(stored.ref, name=LONG)
    tables = tables_of([structs.replace(stored, pod=structs.replace(stored.pod, ref=ref))], "n1")
    folder = GeminiFolder(tmp_path)
    folder.write(tables)
    key = client_name("ns", LONG)
    assert len(key) == 32
    assert (tmp_path / CONFIG / A).read_text() == f"1\n{key} 0.500000 1.000000 1073741824\n"
    assert (tmp_path / PORTS / A).read_text() == f"1\n{key} 50051\n"
    assert folder.tables() == tables
    assert [each.pod for each in tables[A].tenants] == [LONG]
    assert folder.write(with_unread({}, folder.tables(), {("ns", LONG)})) == 0


@pytest.mark.parametrize(
    ("status", "addresses"),
    [
        ({"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "FD00::7"}]}, 2),
        ({"podIP": "10.0.0.7"}, 1),
        ({"podIP": "ten", "podIPs": {"ip": "10.0.0.7"}}, 0),
        ({"podIP": 7, "podIPs": ["10.0.0.7", {"ip": None}, None]}, 0),
        ([], 0),
        (None, 0),
    ],
)
def test_a_pods_addresses_are_those_of_its_status(tmp_path, status, addresses):
    tables = tables_of([bound("a", copied=status)], "n1")
    (tenant,) = tables[A].tenants
    assert tenant.addresses == ("10.0.0.7", "fd00::7")[:addresses]
    folder = GeminiFolder(tmp_path)
    folder.write(tables)
    assert folder.tables() == tables


@given(st.binary() | st.text().map(str.encode))
def test_any_file_of_tenants_is_read_or_refused(content):
    with contextlib.suppress(SourceError):
        parse_identities(content)


def test_a_gpu_without_pods_gets_an_empty_table():
    present = tables_of([bound("a")], "n1")
    (table,) = with_unread({}, present, ()).values()
    assert not table.pods
    assert not table.ports


def test_a_share_pod_that_cannot_be_read_keeps_its_line(tmp_path):
    folder = GeminiFolder(tmp_path)
    folder.write(tables_of([bound("a"), bound("b", port=50052)], "n1"))
    tables = with_unread(tables_of([bound("b", port=50052)], "n1"), folder.tables(), {("ns", "a")})
    assert folder.write(tables) == 0


def test_a_damaged_file_is_written_again(tmp_path):
    folder = GeminiFolder(tmp_path)
    tables = tables_of([bound("a")], "n1")
    folder.write(tables)
    (tmp_path / CONFIG / A).write_bytes(b"\xff\x00 damaged")
    assert folder.write(with_unread(tables, folder.tables(), ())) == 1
    assert parse_config((tmp_path / CONFIG / A).read_bytes()) == tables[A].pods


class Notices:
    """What a reader of a folder notices with inotify."""

    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self.fd, os.fsencode(folder), CLOSE_WRITE | MOVED_TO) >= 0

    def read(self):
        """(mask, name) of each event so far."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        seen = []
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            seen.append((mask, data[16 : 16 + length].rstrip(b"\0").decode()))
            data = data[16 + length :]
        return seen

    def close(self):
        os.close(self.fd)


@pytest.mark.parametrize("is_new_process", [False, True])
def test_readers_notice_each_change_by_its_final_name(tmp_path, is_new_process):
    """Gemini's programs wait for IN_CLOSE_WRITE of the final name; a rename alone is not that."""
    folder = GeminiFolder(tmp_path)
    folder.write(tables_of([bound("a")], "n1"))
    notices = Notices(tmp_path / CONFIG)
    try:
        if is_new_process:  # the last one may have been killed between the rename and the close
            GeminiFolder(tmp_path).write(tables_of([bound("a")], "n1"))
            assert (CLOSE_WRITE, A) in notices.read()
        else:
            folder.write(tables_of([bound("a")], "n1"))
            assert notices.read() == []
        folder.write(tables_of([bound("b")], "n1"))
        events = notices.read()
        assert events.index((MOVED_TO, A)) < events.index((CLOSE_WRITE, A))
    finally:
        notices.close()


@given(st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_what_is_written_is_read_back(names):
    share_pods = [bound(name, port=50051 + number) for number, name in enumerate(names)]
    for table in tables_of(share_pods, "n1").values():
        assert sorted(pod.pod for pod in table.pods) == sorted(names)

        assert parse_ports(format_ports(table.ports)) == table.ports


def test_the_address_is_written_for_the_hooks(tmp_path):
    write_address(tmp_path / "library", "10.0.0.7")
    assert (tmp_path / "library" / "schedulerIP.txt").read_text() == "10.0.0.7\n"


@pytest.mark.parametrize("name", ["schedulerIP.txt", ".schedulerIP.txt.new"])
def test_a_tenants_folder_in_the_place_of_the_address_stops_no_writer(tmp_path, name):
    """Pods that KubeShare's own programs made have this folder mounted to write."""
    outside, library = tmp_path / "outside", tmp_path / "library"
    (library / name / "deep").mkdir(parents=True)
    (library / name / "file").write_text("kept")
    outside.mkdir()
    (library / name / "link").symlink_to(outside)
    write_address(library, "10.0.0.7")
    address = library / "schedulerIP.txt"
    assert address.is_file()
    assert not address.is_symlink()
    assert address.read_text() == "10.0.0.7\n"
    assert outside.is_dir()
    (moved,) = library.glob(".*.moved")  # not ours, so it is not deleted
    assert (moved / "file").read_text() == "kept"
    before = set(library.iterdir())
    write_address(library, "10.0.0.7")
    assert set(library.iterdir()) == before


@pytest.mark.parametrize("name", ["schedulerIP.txt", ".schedulerIP.txt.new"])
def test_a_tenants_link_in_the_place_of_the_address_is_not_followed(tmp_path, name):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (tmp_path / name).symlink_to(outside)
    write_address(tmp_path, "10.0.0.7")
    assert outside.read_text() == "kept"
    assert (tmp_path / "schedulerIP.txt").read_text() == "10.0.0.7\n"
    assert not (tmp_path / "schedulerIP.txt").is_symlink()


def test_an_address_that_hooks_of_other_users_cannot_read_is_written_again(tmp_path):
    write_address(tmp_path, "10.0.0.7")
    (tmp_path / "schedulerIP.txt").chmod(0o600)
    write_address(tmp_path, "10.0.0.7")
    assert (tmp_path / "schedulerIP.txt").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("folder", [CONFIG, PORTS, TENANTS])
@pytest.mark.parametrize("name", [A, f".{A}.new"])
def test_a_folder_in_the_place_of_a_gpus_file_stops_no_writer(tmp_path, folder, name):
    (tmp_path / folder / name / "deep").mkdir(parents=True)
    tables = tables_of([bound("a"), bound("b", uuid=B, port=50052)], "n1")
    assert GeminiFolder(tmp_path).write(tables) == 6
    assert GeminiFolder(tmp_path).tables() == tables


def grant(*ids, pod="holder", resource="nvidia.com/gpu"):
    return Grant(pod, "main", resource, ids, {})


@pytest.mark.parametrize(
    ("grants", "uuid"),
    [
        ([grant(A)], A),
        ([grant(f"{A}::3")], A),
        ([], ""),
        ([grant(A, pod="other")], ""),
        ([grant(A), grant(B)], ""),
        ([grant("no-uuid")], ""),
        ([grant(A, resource="example.com/gpu")], ""),
    ],
)
def test_a_holder_has_the_gpu_of_the_kubelets_record(grants, uuid):
    assert held_uuid(grants, "holder") == uuid
