"""Whether a token names its node, as an API server answers a SelfSubjectReview."""

import json

import pytest

from vgpu.apiserver.connection import ClusterError
from vgpu.kube.node_key import NODE_KEY, OWN_NODE_VALUE
from vgpu.program.node_token import AGAIN_SECONDS, METRIC, NodeToken


class Server:
    """Answers in order; the last one again and again."""

    def __init__(self, *answers):
        self.answers, self.asked, self.now = list(answers), 0, 0.0

    def send(self, *_):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        extra = {NODE_KEY: [answer]} if answer else {}
        user = {"username": "system:serviceaccount:a:b", "extra": extra}
        return json.dumps({"metadata": {}, "status": {"userInfo": user}}).encode()

    def token(self, *, is_required=True):
        return NodeToken(self, "n1", is_required=is_required, monotonic=lambda: self.now)


def numbers(token):
    return token.numbers(lambda: {"other": 1.0})()


def test_a_token_that_names_the_node_is_asked_about_once():
    server = Server("n1")
    token = server.token()
    assert [token.complaint(), token.complaint()] == ["", ""]
    assert server.asked == 1
    assert numbers(token) == {"other": 1.0, METRIC: 1.0}


@pytest.mark.parametrize(("node", "text"), [("", "names no node"), ("n2", "names node n2")])
def test_another_token_is_complained_about_with_the_key_and_the_value(node, text, caplog):
    token = Server(node).token()
    problem = token.complaint()
    assert text in problem
    assert NODE_KEY in problem
    assert f"{OWN_NODE_VALUE}: false" in problem
    assert [record.reason for record in caplog.records] == [problem]
    assert numbers(token)[METRIC] == 0.0


def test_an_error_is_no_evidence_and_is_asked_again_later():
    server = Server(ClusterError(0, "Unreachable", "no answer"), "n1")
    token = server.token()
    assert "it is unknown which node" in token.complaint()
    assert "it is unknown which node" in token.complaint()
    assert server.asked == 1
    server.now += AGAIN_SECONDS
    assert token.complaint() == ""


def test_where_no_policy_requires_it_nobody_is_asked():
    server = Server("")
    token = server.token(is_required=False)
    assert token.complaint() == ""
    assert server.asked == 0
    assert numbers(token) == {"other": 1.0}
