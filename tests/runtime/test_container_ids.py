"""The names of containers by their ids, also by ids that the kubelet has cut."""

from hypothesis import given
from hypothesis import strategies as st

from vgpu.sources.samples import ID_DIGITS, MIN_ID_DIGITS, is_cut, with_whole_ids

FIRST, SECOND = "ab" * 32, "ab" * 10 + "cd" * 22


def test_a_cut_id_names_the_one_container_that_it_begins():
    names = {FIRST[:20]: "main", SECOND: "side"}
    assert with_whole_ids(names, [FIRST]) == {FIRST: "main", SECOND: "side"}


def test_a_cut_id_that_begins_two_containers_of_the_pod_names_neither():
    assert with_whole_ids({FIRST[:20]: "main"}, [FIRST, SECOND]) == {}


def test_a_container_that_would_get_two_names_gets_none():
    names = {FIRST[:20]: "main", FIRST[:30]: "side"}
    assert with_whole_ids(names, [FIRST]) == {}


def test_a_whole_id_goes_before_a_cut_one():
    assert with_whole_ids({FIRST: "main", FIRST[:30]: "side"}, [FIRST]) == {FIRST: "main"}


@given(
    st.dictionaries(st.text("ab", min_size=MIN_ID_DIGITS, max_size=ID_DIGITS), st.text("xyz")),
    st.sets(st.text("ab", min_size=ID_DIGITS, max_size=ID_DIGITS)),
)
def test_each_name_is_of_an_id_that_begins_so(names, ids):
    for container_id, name in with_whole_ids(names, ids).items():
        assert not is_cut(container_id)
        assert name in {name_of for key, name_of in names.items() if container_id.startswith(key)}
