"""Reads and explanations go on, whatever one of them raises, and the page never looks fresher."""

import threading

import pytest

from fleet.explainer import Explainer
from fleet.keeper import Keeper
from fleet.waiting import NOT_EXPLAINED
from tests.fleet.pages_of_dump import get, site_of
from tests.support.sample_cluster import gpushare_node, pod, volcano_node


class Reads:
    """Reads that raise or answer as listed, and the last one for ever."""

    def __init__(self, *answers):
        self.answers, self.number, self.made = answers, 0, threading.Condition()

    def __call__(self):
        answer = self.answers[min(self.number, len(self.answers) - 1)]
        with self.made:
            self.number += 1
            self.made.notify_all()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait_for(self, number):
        with self.made:
            assert self.made.wait_for(lambda: self.number >= number, 20)


def test_after_an_unexpected_error_it_reads_again_and_shows_it_until_then():
    reads = Reads("first", ZeroDivisionError("secret"), "third")
    failures = []

    def make():
        failures.append(keeper.kept.failure)
        return reads()

    keeper = Keeper(make, 0.001, (OSError,))
    keeper.read(lambda _: None)
    with keeper:
        reads.wait_for(4)
    (failure,) = {each for each in failures if "ZeroDivisionError" in each}
    assert "unexpected error" in failure
    assert "test_keeper.py, line" in failure
    assert "secret" not in failure
    assert keeper.kept.snapshot == "third"
    assert keeper.kept.failure == ""


@pytest.mark.parametrize(
    ("every", "elapsed", "is_late"), [(30, 90, False), (30, 91, True), (0, 1e9, False)]
)
def test_a_read_that_hangs_makes_the_page_out_of_date(every, elapsed, is_late):
    now = [1000.0]
    keeper = Keeper(lambda: "read", every, (), clock=lambda: now[0])
    keeper.read(lambda _: None)
    now[0] += elapsed
    assert bool(keeper.kept.failure) is is_late
    keeper.read(lambda _: None)
    assert keeper.kept.failure == ""


def test_a_pod_that_cannot_be_explained_keeps_no_other_from_it(written, monkeypatch):
    waiting = [
        pod(name, limits={"aliyun.com/gpu-mem": 500}, unschedulable="0/1 nodes are available.")
        for name in ("bad", "good")
    ]
    snapshot = None

    def explain_all(self, found):
        nonlocal snapshot
        snapshot, answer = found, found.answers.pod

        def broken(namespace, name):
            if name == "bad":
                raise RecursionError
            return answer(namespace, name)

        monkeypatch.setattr(found.answers, "pod", broken)
        return original(self, found)

    original = Explainer._explain_all
    monkeypatch.setattr(Explainer, "_explain_all", explain_all)
    site = site_of(written([gpushare_node("g"), volcano_node("v", 1), *waiting]))
    html = get(site, "/pods?tab=waiting").body.decode()
    assert html.count(NOT_EXPLAINED) == 1
    assert "not explained yet" not in html
