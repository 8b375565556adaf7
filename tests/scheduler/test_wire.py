"""The JSON of filter: the names of nodes are answered as they were sent."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.verbs.wire import FilterAnswer, read_query, write_filter
from vgpu.model.reasons import SourceError

POD = {"metadata": {"name": "train", "namespace": "ml", "uid": "u1"}, "spec": {}, "status": {}}

WITH_COMMAS = [[","], [",,"], ["", ","], [",", ""], [",", "a"], ["a", ","], ["a,b"], [",a,"]]
ESCAPED = [
    ['"'],
    ["\\"],
    ['a","b'],
    [',","'],
    ['\\","'],
    ["\n", "\t"],
    ["\0"],
    ["\u2028"],
    ["\U0001f600", "é"],
]
OTHERS = [[""], [" "], ["]", "["], ["{", "}"], ["null", ":"], ["\x7f"]]
"""Names of no node of a cluster, but of a request that anybody can send."""

COMPACT = (",", ":")

names = st.lists(st.text(st.sampled_from('ab-.,:"\\ \né[]{}'), max_size=6), max_size=5, unique=True)


def query_of(listed):
    return read_query(f'{{"Pod":{json.dumps(POD)},"NodeNames":{listed}}}'.encode(), lambda *_: None)


def examples(rows):
    """Each list of names as an example, written as kube-scheduler writes it."""

    def with_examples(test):
        for row in rows:
            test = example(row, COMPACT, "no GPU")(test)
        return test

    return with_examples


@examples([*WITH_COMMAS, *ESCAPED, *OTHERS])
@given(names, st.sampled_from([COMPACT, (", ", ": "), (" ,", ":"), ("\n,\t", ":")]), st.text())
def test_a_text_is_answered_for_each_node_whatever_its_name_and_the_form_of_the_list(
    sent, separators, text
):
    listed = f" {json.dumps(sent, separators=separators)} "
    query = query_of(listed)
    answer = json.loads(write_filter(FilterAnswer(failed=query.each(text))))
    assert (len(query.names), tuple(query.names)) == (len(sent), tuple(sent))
    assert answer["FailedNodes"] == dict.fromkeys(sent, text)


@pytest.mark.parametrize("sent", [*WITH_COMMAS, *ESCAPED, *OTHERS], ids=json.dumps)
def test_the_names_of_a_list_without_escapes_are_answered_as_sent(sent):
    query = query_of(json.dumps(sent, ensure_ascii=False, separators=COMPACT))
    answer = json.loads(write_filter(FilterAnswer(query.names, failed=query.each("no GPU"))))
    assert answer["NodeNames"] == sent
    assert answer["FailedNodes"] == dict.fromkeys(sent, "no GPU")


@pytest.mark.parametrize("sent", [["a"], ["a", "b-1.example.com"], []])
def test_a_list_of_kube_schedulers_is_copied_or_empty(sent):
    answer = query_of(json.dumps(sent, separators=COMPACT)).each("no GPU")
    assert bool(sent) == (not isinstance(answer, dict))


@pytest.mark.parametrize(
    "sent",
    [
        b'["a\xff"]',
        b'["a",1]',
        b'["a",["b","c"]]',
        b'["a",{"b":"c"},"d"]',
        b'["a",null]',
        b'["\\ud800"]',
        b'["\\udc00\\ud800"]',
        b'["a\x01"]',
        b'["a""b"]',
    ],
)
def test_a_list_that_has_not_only_names_is_refused_as_such(sent):
    body = b'{"Pod":%b,"NodeNames":%b}' % (json.dumps(POD).encode(), sent)
    with pytest.raises(SourceError, match="extender request"):
        read_query(body, lambda *_: None)
