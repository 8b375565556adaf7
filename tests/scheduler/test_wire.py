"""The JSON of filter: the names of nodes are answered as they were sent."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.verbs.wire import FilterAnswer, read_query, write_filter
from vgpu.model.reasons import SourceError

POD = {"metadata": {"name": "train", "namespace": "ml", "uid": "u1"}, "spec": {}, "status": {}}

names = st.lists(st.text(st.sampled_from('ab-.,:"\\ \né[]{}'), max_size=6), max_size=5, unique=True)


def query_of(listed):
    return read_query(f'{{"Pod":{json.dumps(POD)},"NodeNames":{listed}}}'.encode(), lambda *_: None)


@given(names, st.sampled_from([(",", ":"), (", ", ": "), (" ,", ":"), ("\n,\t", ":")]), st.text())
def test_a_text_is_answered_for_each_node_whatever_its_name_and_the_form_of_the_list(
    sent, separators, text
):
    listed = f" {json.dumps(sent, separators=separators)} "
    query = query_of(listed)
    answer = json.loads(write_filter(FilterAnswer(failed=query.each(text))))
    assert (len(query.names), tuple(query.names)) == (len(sent), tuple(sent))
    assert answer["FailedNodes"] == dict.fromkeys(sent, text)


@pytest.mark.parametrize("sent", [["a"], ["a", "b-1.example.com"], []])
def test_a_list_of_kube_schedulers_is_copied_or_empty(sent):
    answer = query_of(json.dumps(sent, separators=(",", ":"))).each("no GPU")
    assert bool(sent) == (not isinstance(answer, dict))


@pytest.mark.parametrize("sent", [b'["a\xff"]', b'["a",1]', b'["a",["b","c"]]', b'["a",null]'])
def test_a_list_that_has_not_only_names_is_refused_as_such(sent):
    body = b'{"Pod":%b,"NodeNames":%b}' % (json.dumps(POD).encode(), sent)
    with pytest.raises(SourceError, match="extender request"):
        read_query(body, lambda *_: None)
