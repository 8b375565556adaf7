"""Equal entries of a list are one with a count; others, and few, stay as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.folding import MOST_EQUAL, examples_text, folded, folded_texts

entries = st.lists(st.sampled_from("ab"), max_size=60).map(
    lambda keys: [(key, number) for number, key in enumerate(keys)]
)


@given(entries)
def test_every_entry_is_in_one_group_and_groups_of_several_are_equal_and_large(listed):
    groups = list(folded(listed, lambda entry: entry[0]))
    assert {entry for group in groups for entry in group} == set(listed)
    for group in groups:
        assert len({key for key, _ in group}) == 1
        assert len(group) == 1 or len(group) > MOST_EQUAL
    firsts = [number for (_, number), *_ in groups]
    assert firsts == sorted(firsts)


def test_texts_that_differ_in_the_name_of_their_object_are_one_with_a_count():
    texts = [(f"ml/p-{n}", f"pod ml/p-{n}: no claim") for n in range(1500)]
    assert list(folded_texts([*texts, ("ml/q", "pod ml/q: unreadable")])) == [
        "pod ml/p-0: no claim (the same of 1499 more: ml/p-1, ml/p-2, ml/p-3 and 1496 more)",
        "pod ml/q: unreadable",
    ]
    few = texts[:MOST_EQUAL]
    assert list(folded_texts(few)) == [text for _, text in few]


@pytest.mark.parametrize(
    ("names", "text"), [((), ""), ("aab", "a, b"), ("abcde", "a, b, c and 2 more")]
)
def test_a_few_examples_are_named(names, text):
    assert examples_text(names) == text
