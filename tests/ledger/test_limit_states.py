"""Whether a mapped file is the node's library, by device and inode."""

import pytest

from vgpu.ledger.limit_states import linkage
from vgpu.ledger.limit_verdict import Linked
from vgpu.model.facts import LinkedProcess, MappedFile, NodeLibrary
from vgpu.schemes.limit_ways import HAMI_CORE

LIBRARY = HAMI_CORE.library
ON_NODE = (NodeLibrary("libvgpu.so", "8:1", 77), NodeLibrary("libvgpu.so", "8:1", 78))


def mapped(device, inode, name="libvgpu.so", **changes):
    return MappedFile(name, device, inode, **changes)


@pytest.mark.parametrize(
    ("files", "linked"),
    [
        ([mapped("8:1", 77)], Linked.LIBRARY),
        ([mapped("8:1", 78, "libvgpu.so.v2.10.0")], Linked.LIBRARY),
        ([mapped("8:1", 5), mapped("8:1", 77)], Linked.COPY),
        ([mapped("8:1", 77), mapped("8:1", 5, "libvgpu.so-x")], Linked.COPY),
        ([mapped("8:1", 77), mapped("8:2", 5)], Linked.UNCLEAR),
        ([mapped("8:1", 77), mapped("8:1", 5, deleted=True)], Linked.REPLACED),
        ([mapped("8:1", 77), mapped("8:1", 78, "libvgpu.so.v2.10.0")], Linked.LIBRARY),
        ([mapped("8:1", 5)], Linked.COPY),
        ([mapped("0:35", 77)], Linked.UNCLEAR),  # btrfs: the kernel names the file system's device
        ([mapped("8:1", 5, deleted=True)], Linked.REPLACED),
        ([mapped("8:1", 77, "libgemhook.so.1")], Linked.NOTHING),
        ([], Linked.NOTHING),
    ],
)
def test_the_library_is_the_nodes_file_by_device_and_inode(files, linked):
    assert linkage(LinkedProcess(tuple(files)), LIBRARY, ON_NODE) is linked


def test_a_static_binary_has_no_loader_and_an_unknown_library_compares_with_nothing():
    assert linkage(LinkedProcess(dynamic=False), LIBRARY, ON_NODE) is Linked.STATIC
    assert linkage(LinkedProcess((mapped("8:1", 77),)), LIBRARY, ()) is Linked.UNREAD
