"""What the terminal sends, as keys: whole, in parts, and as nonsense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpucli.top.keys import (
    KEYS,
    LONGEST,
    Command,
    Edited,
    Move,
    Sort,
    Typed,
    edited,
    scrolled,
    typed,
)


def test_every_key_has_the_effect_in_the_table():
    for sent, key in KEYS.items():
        assert typed(sent).keys == (key,)


def test_keys_in_one_read_are_distinguished():
    assert typed(b"m\x1b[B\x1b[6~q").keys == (
        Sort.MEMORY,
        Move.DOWN,
        Move.PAGE_DOWN,
        Command.QUIT,
    )


def test_other_keys_mean_nothing_and_hide_nothing():
    assert typed(b"\x1b[15~x\x1b[1;5Aq\xc3\xa9").keys == (Command.QUIT,)
    assert typed(b"\x1bq").keys == (Command.QUIT,)  # Escape, then q


@given(st.lists(st.sampled_from(sorted(KEYS.keys() - {b"/"}))), st.data())
def test_keys_that_arrive_in_parts_are_the_same_keys(sent, data):
    stream = b"".join(sent)
    cut = data.draw(st.integers(0, len(stream)))
    if stream[cut - 1 : cut] == b"\x1b":
        cut -= 1  # there Escape itself looks like the beginning of a key
    first = typed(stream[:cut])
    second = typed(first.rest + stream[cut:])
    assert (*first.keys, *second.keys) == tuple(KEYS[key] for key in sent)
    assert second.rest == b""


@given(st.binary(max_size=200))
def test_no_bytes_break_it_or_pile_up(sent):
    assert len(typed(sent).rest) <= LONGEST


@given(st.integers(0, 50), st.sampled_from(Move), st.integers(1, 50), st.integers(0, 50))
def test_scrolling_never_leaves_the_rows(offset, move, page, rows):
    assert 0 <= scrolled(offset, move, page, rows) <= max(0, rows - page)


@pytest.mark.parametrize(
    ("pattern", "sent", "result"),
    [
        ("", b"ml", ("ml", True)),
        ("ml", b"\x7f\x7f\x7f", ("", True)),
        ("ml", b"/a\r", ("ml/a", False)),
        ("ml", b"\x1b", ("", False)),
        ("ml", b"\x03", ("", False)),
        ("", "é\x01\xff".encode("latin-1") + "é".encode(), ("é", True)),
        ("x" * 60, b"y", ("x" * 60, True)),
    ],
)
def test_a_filter_is_typed(pattern, sent, result):
    found = edited(pattern, sent)
    assert (found.pattern, found.typing) == result


def test_what_follows_a_filter_in_the_same_bytes_is_its_text_until_its_end():
    assert typed(b"m/vllm\rq") == Typed((Sort.MEMORY, Command.FILTER), b"vllm\rq")
    assert edited("", b"vllm\rq") == Edited("vllm", False, b"q")
    assert edited("", "ä\x1bü".encode()) == Edited("", False, "ü".encode())
