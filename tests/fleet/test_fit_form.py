"""The form that asks how many more pods fit: what it asks, and what it names as not asked."""

import json

import pytest

from fleet.language import texts_of
from tests.fleet.pages_of_dump import get, site_of
from tests.support.sample_cluster import gpushare_node, kubeshare_node


@pytest.fixture(scope="module")
def site(written):
    return site_of(written([gpushare_node("g", gpus=1)]))


@pytest.mark.parametrize("cores", ["500", "-1", "x", "nan"])
def test_cores_out_of_range_ask_nothing(site, cores):
    view = json.loads(get(site, f"/fit.json?memory=2&cores={cores}").body)
    assert (view["memoryGib"], view["systems"]) == (0, [])


@pytest.mark.parametrize(("cores", "ignored"), [("", ""), ("0", ""), ("50", "cores")])
def test_cores_of_a_system_without_cores_are_named_as_ignored(site, cores, ignored):
    (system,) = json.loads(get(site, f"/fit.json?memory=2&cores={cores}").body)["systems"]
    assert system["ignored"] == ignored
    html = get(site, f"/fit?memory=2&cores={cores}").body.decode()
    assert ("divides no cores" in html) == bool(ignored)
    assert "11 more pods" in html


@pytest.mark.parametrize(("number", "text"), [(0, "0 more pods"), (1, "1 more pod")])
def test_further_pods_are_counted(number, text):
    assert texts_of("en").count(number, "more pod") == text


def test_a_system_that_is_not_asked_is_named(written):
    html = get(site_of(written([kubeshare_node("k", 1)])), "/fit?memory=2").body.decode()
    assert "KubeShare is not asked here" in html
    assert "No sharing system" not in html
