"""GPUs of NVIDIA's own device plugin on the page: nodes, holders and what fits."""

import json

import pytest

from tests.fleet.pages_of_dump import get, site_of
from tests.fleet.test_page_numbers import of_nvidia


@pytest.fixture(scope="module")
def site(written):
    return site_of(written(of_nvidia()))


def view(site, path, query=""):
    return json.loads(get(site, f"{path}.json{query}").body)


def test_its_nodes_are_listed_and_have_pages(site):
    rows = view(site, "/nodes")["rows"]
    assert {row["node"]["name"] for row in rows} == {"own-1", "own-2", "mig-1"}
    assert {row["node"]["name"] for row in view(site, "/nodes", "?model=NVIDIA-H100")["rows"]} == {
        row["node"]["name"] for row in rows if row["nvidia"][0]["model"] == "NVIDIA-H100"
    }
    for name in ("own-1", "own-2", "mig-1"):
        assert get(site, f"/nodes/{name}").status == 200


def test_what_a_pod_holds_is_not_called_nothing(site):
    (held,) = view(site, "/pods/ml/whole")["nvidiaUnits"]
    assert (held["node"], held["resource"], held["number"]) == ("own-1", "nvidia.com/gpu", 2)
    assert "Nothing is held." not in get(site, "/pods/ml/whole").body.decode()
    assert "Nothing is held." in get(site, "/pods/ml/waits").body.decode()


def test_the_first_page_claims_no_memory_of_shared_gpus(site):
    html = get(site, "/").body.decode()
    assert "No GPU is shared." not in html
    assert "largest free share" not in html
    sums = {each["resource"]: each for each in view(site, "/index")["nvidiaSums"]}
    assert (sums["nvidia.com/gpu"]["allocatable"], sums["nvidia.com/gpu"]["held"]) == (16, 2)


def test_its_units_are_asked_for_as_one_more_system(site):
    systems = {each["system"]: each for each in view(site, "/fit", "?memory=4")["systems"]}
    assert systems["nvidia.com/gpu"]["answer"]["pods"] == 14
    assert systems["nvidia.com/mig-1g.10gb"]["answer"]["pods"] == 6
