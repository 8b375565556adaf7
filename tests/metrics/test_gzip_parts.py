"""Gzip in parts: any sequence of texts is read back by zlib as it was."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.metrics.gzip_parts import GzipParts

parts = st.dictionaries(st.sampled_from("abcde"), st.lists(st.binary(max_size=200)).map(tuple))


@pytest.mark.slow
@given(st.lists(parts, min_size=1, max_size=5))
def test_each_text_is_read_back_whatever_was_packed_before(texts):
    packer = GzipParts()
    for text in texts:
        whole = b"".join(piece for part in text.values() for piece in part)
        assert gzip.decompress(packer.pack(list(text.items()))) == whole


def test_a_part_that_did_not_change_is_not_compressed_again(monkeypatch):
    compressed, begin = [], zlib.compressobj

    class Noted:
        def __init__(self, *arguments):
            self.packer = begin(*arguments)
            self.flush = self.packer.flush

        def compress(self, piece):
            compressed.append(piece)
            return self.packer.compress(piece)

    monkeypatch.setattr(zlib, "compressobj", Noted)
    packer = GzipParts()
    packer.pack([("a", (b"same",)), ("b", (b"old",))])
    packer.pack([("a", (b"same",)), ("b", (b"new",))])
    assert compressed == [b"same", b"old", b"new"]


def test_a_text_after_a_failed_one_has_nothing_of_it():
    """Memory may end in the middle of a part."""
    parts = GzipParts()
    with pytest.raises(TypeError):
        parts.pack([("one", (b"failed", None))])
    assert gzip.decompress(parts.pack([("one", (b"next",))])) == b"next"
