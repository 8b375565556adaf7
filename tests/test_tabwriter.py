"""Columns as Go's text/tabwriter aligns them; the expected texts are Go's own output."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpucli.tabwriter import align


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\tc\n", "a  b  c\n"),
        ("a\tb\nlonger\tb\n", "a       b\nlonger  b\n"),
        ("a\tb\t\n", "a  b  \n"),
        ("\tb\n", "  b\n"),
        ("\n\n", "\n\n"),
        ("", ""),
        ("é\tb\nee\tb\n", "é   b\nee  b\n"),
        ("日本\tb\nxxx\tb\n", "日本   b\nxxx  b\n"),
        ("a\t日本\t", "a  日本"),
    ],
)
def test_cells_are_padded_to_their_column(text, expected):
    assert align(text) == expected


def test_a_line_without_the_cell_ends_the_column():
    text = "a\tb\nlong line\nlonger\tb\n"
    assert align(text) == "a  b\nlong line\nlonger  b\n"


def test_a_column_ends_where_only_an_outer_one_goes_on():
    text = "a\tb\tc\nlonger\tx\na\tbbbb\tc\n"
    assert align(text) == "a       b  c\nlonger  x\na       bbbb  c\n"


def test_the_last_text_of_a_line_does_not_widen_a_column():
    assert align("a\tvery long\nb\tx\ty\n") == "a  very long\nb  x  y\n"


LINES = st.lists(st.lists(st.text("abé ", max_size=5), min_size=1, max_size=4), max_size=6)


@given(LINES)
def test_only_blanks_are_put_in(lines):
    text = "".join("\t".join(cells) + "\n" for cells in lines)
    aligned = align(text)
    assert aligned.replace(" ", "") == text.replace(" ", "").replace("\t", "")
    assert aligned.count("\n") == len(lines)


@given(LINES)
def test_cells_of_one_column_begin_at_one_place(lines):
    """With as many cells in every line there is one column block only."""
    table = [(cells + ["x"] * 4)[:4] for cells in lines]
    aligned = align("".join("\t".join(cells) + "\n" for cells in table)).split("\n")
    for column in range(3):
        width = max((len(cells[column]) for cells in table), default=0) + 2
        for number, cells in enumerate(table):
            assert aligned[number][:width] == cells[column].ljust(width)
            aligned[number] = aligned[number][width:]
