"""Merge patches and what the API server keeps of a value, by laws and by worked cases.

That the API server does the same with :data:`ON_THE_SERVER` is tested in
``tests/cluster/test_cluster_client.py``.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.environment import ROOT
from vgpu.kube.merge_patches import is_stored, kept, merge_patch, merged

POD_STATUSES = json.loads((ROOT / "tests/golden/pod-status/kubelet-1.34.4.json").read_text())
"""Statuses of pods as the API server has them, and a kubelet has written them."""

ON_THE_SERVER = (
    (1, [{"b": None, "c": 1}], [{"c": 1}]),
    ([1], [{"b": None, "c": 1}], [{"c": 1}]),
    ({"x": 1}, [{"b": None}, None, 1.0], [{"b": None}, None, 1]),
    (1, [None, 1, [None, {"q": None}]], [None, 1, [None, {}]]),
    (1, {"a": [{"b": None}], "d": None, "e": {"f": None}}, {"a": [{}], "e": {}}),
    ({"a": {"x": 1}}, {"a": {"b": [{"c": None}], "x": None}}, {"a": {"b": [{}]}}),
    ({"n": None, "x": 1}, {"b": {"c": None}}, {"n": None, "x": 1, "b": {}}),
    (None, {"a": None, "b": 1}, {"b": 1}),
    ([{"a": None}, None], [{"a": None}, None], [{}, None]),
    (1, -0.0, 0),
    (1, 1e20, 1e20),
    (1, 12345678901234567890, 12345678901234567890.0),
    (1, 2**63 - 1, 2**63 - 1),
    (1, 0.1, 0.1),
    (1, False, False),
    (1, {}, {}),
    (1, [], []),
    (1, "<&>\u2028é\x00", "<&>\u2028é\x00"),
    (1, POD_STATUSES["init"], kept(POD_STATUSES["init"])),
)
"""A stored value, what a patch has in its place, and what is stored then."""

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3) | st.sampled_from(
    list(POD_STATUSES.values())
)


@given(OBJECTS, OBJECTS)
def test_a_patch_that_was_merged_is_not_due_again(before, after):
    stored = merged(before, merge_patch(before, after))
    assert is_stored(after, stored)
    assert merge_patch(stored, after) == {}


@given(OBJECTS, OBJECTS)
def test_a_patch_is_empty_exactly_if_the_value_is_stored(before, after):
    assert (merge_patch(before, after) == {}) == is_stored(after, before)


@given(OBJECTS, OBJECTS)
def test_merging_again_changes_nothing_and_leaves_its_arguments_alone(target, patch):
    before = json.dumps([target, patch])
    once = merged(target, patch)
    assert is_stored(merged(once, patch), once)
    assert json.dumps([target, patch]) == before
    assert not any(key in once for key, value in patch.items() if value is None)


@given(JSON)
def test_what_is_kept_is_kept_again_and_has_no_null(value):
    assert kept(kept(value)) == kept(value)
    assert value is None or "null" not in json.dumps(kept(value)).replace('"null"', "")
    assert is_stored(value, kept(value))


@given(JSON, JSON)
def test_values_that_differ_in_more_than_nulls_and_numbers_of_go_are_not_stored(one, other):
    """Python alone has True equal to 1; nothing else is equal that JSON has differently."""
    texts = [json.dumps(kept(each), sort_keys=True) for each in (one, other)]
    assert is_stored(one, other) == (texts[0] == texts[1])


@pytest.mark.parametrize(
    ("wanted", "stored"), [(True, 1), (0, False), ([1], [True]), ("1", 1), ({}, None), ([], {})]
)
def test_true_is_no_number_and_nothing_is_no_empty_object(wanted, stored):
    assert not is_stored(wanted, stored)


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_that_go_refuses_is_compared_as_it_is(number):
    assert is_stored({"a": number}, {"a": number})
    assert not is_stored({"a": number}, {"a": 1})


@pytest.mark.parametrize(("before", "patch", "after"), ON_THE_SERVER)
def test_the_model_stores_what_the_api_server_stores(before, patch, after):
    stored = merged({"a": before}, {"a": patch})["a"]
    assert json.dumps(stored, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert is_stored(stored, after)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_are_those_of_the_standard(target, patch, result):
    assert merged(target, patch) == result
