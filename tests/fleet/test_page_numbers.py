"""Every number of the page is that of the command that owns it."""

import json
import os
import re
import shlex
from collections import Counter

import pytest
from click.testing import CliRunner

from fleet.pages import PAGES
from simulator.apiserver import ALL_KINDS
from simulator.cluster import SimulatedCluster
from simulator.demo_cluster import demo_cluster
from tests.commands.test_inspect_use import ITEMS, page, served
from tests.fleet.page_numbers import PageNumbers, as_json, resolved, texts, with_holdings
from tests.fleet.pages_of_dump import FLAGS, get, site_of
from tests.support.sample_cluster import NOW, items, nvidia_node, pod, resource_quota
from vgpu.model.units import GIB
from vgpucli.main import main
from vgpucli.measure_flags import measuring

GROUPS = {
    "inspect-by-namespace": ("inspect", "--by", "namespace"),
    "inspect-by-team": ("inspect", "--by", "team"),
    "inspect-by-queue": ("inspect", "--by", "queue"),
}


def of_demo():
    store = SimulatedCluster(demo_cluster(NOW), NOW).store
    return [
        {"apiVersion": kind.api_version, "kind": kind.name, **item}
        for kind in ALL_KINDS
        for item in store.list(kind).items
    ]


def of_nvidia():
    """NVIDIA's own plugin beside quotas that are exceeded."""
    whole = {"nvidia.com/gpu": 2}
    limited = {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": "ml", "annotations": {"vgpu.dev/quota-gpus": "1"}},
    }
    return [
        nvidia_node("own-1", "nvidia.com/gpu", 8, gpu_product="NVIDIA-H100", gpu_memory=81559),
        nvidia_node("own-2", "nvidia.com/gpu", 8, gpu_product="NVIDIA-H100", gpu_memory=81559),
        nvidia_node("mig-1", "nvidia.com/mig-1g.10gb", 7, gpu_product="NVIDIA-H100"),
        pod("whole", "own-1", whole),
        pod("slice", "mig-1", {"nvidia.com/mig-1g.10gb": 1}),
        pod("waits", limits={"nvidia.com/gpu": 16}, unschedulable="0/3 nodes are available."),
        resource_quota("q", {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}),
        limited,
    ]


CLUSTERS = {
    "demo": of_demo,
    "sample": items,
    "nothing": lambda: items()[6:7],
    "measured": lambda: list(ITEMS),
    "nvidia": of_nvidia,
}
MEASURED = page(
    ("a", 8, 3, 0.5, 0.25), ("b", 4, 1, None, None), limited={"a": "library_not_mapped"}
)


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request):
    return request.param


@pytest.fixture(scope="module")
def exporters(cluster):
    """The URLs of the exporters that are asked: of one cluster one that answers, of two."""
    if cluster != "measured":
        yield ()
        return
    with served("/metrics", lambda _: MEASURED) as url:
        yield url, "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def flags(exporters):
    return (*FLAGS, *(word for url in exporters for word in ("--exporter", url)))


@pytest.fixture(scope="module")
def dump(cluster, tmp_path_factory):
    path = tmp_path_factory.mktemp("fleet") / "dump.json"
    listed = {"apiVersion": "v1", "kind": "List", "items": CLUSTERS[cluster]()}
    path.write_text(json.dumps(listed))
    os.utime(path, (NOW, NOW))
    return str(path)


@pytest.fixture(scope="module")
def documents(dump, flags, exporters):
    """The document of each command that owns a number."""

    def run(words):
        return as_json(CliRunner().invoke(main, (*words, "-o", "json", "--from", dump)).stdout)

    found = {owner: run((*words, *flags)) for owner, words in GROUPS.items()}
    found["inspect"] = run(("inspect", *flags, *(["--limits"] if exporters else [])))
    found["doctor"] = run(("doctor", *FLAGS))
    return {**found, "inspect": with_holdings(found["inspect"])}


@pytest.fixture(scope="module")
def pages(dump, exporters):
    """Each page that is linked from another one: path -> (HTML, JSON)."""
    measure = measuring(None, exporters, {}, limits=True)
    site, found = site_of(dump, measured=measure), {}
    wanted = [page.path for page in PAGES if page.title]
    while wanted:
        path = wanted.pop()
        if path in found:
            continue
        answer = get(site, path)
        assert answer.status == 200, path
        html = answer.body.decode()
        (json_path,) = re.findall(r'<a href="([^"]+)">JSON</a>', html)
        found[path] = html, as_json(get(site, json_path.replace("&amp;", "&")).body)
        wanted += [each.replace("&amp;", "&") for each in re.findall(r'href="(/[^"]*)"', html)]
        skipped = ("/style.css", ".json", "lang=")
        wanted = [each for each in wanted if not any(part in each for part in skipped)]
    return found


def test_each_number_is_that_of_its_command(pages, documents):
    seen = set()
    for path, (html, own) in pages.items():
        for owner, where, value in PageNumbers(html).numbers:
            document = own if owner == "page" else documents[owner]
            assert str(resolved(document, where)) == value, (path, owner, where)
            seen.add(owner)
    assert {"page", "doctor"} <= seen
    if documents["inspect"]["nodes"]:
        assert {"inspect", "inspect-by-namespace"} <= seen


def test_the_first_sentence_and_the_models_are_sums_of_inspect(pages, documents):
    _, own = pages["/"]
    nodes = documents["inspect"]["nodes"]
    shared = [(node, gpu) for node in nodes for gpu in node["devices"] if gpu["system"]]
    taking = [
        gpu["memoryFreeBytes"] or 0
        for node, gpu in shared
        if node["ready"] and not node["unschedulable"] and not node["closed"] and gpu["healthy"]
    ]
    sentence = own["sentence"]
    assert sentence["memoryBytes"] == sum(gpu["memoryBytes"] or 0 for _, gpu in shared)
    assert (sentence["freeBytes"], sentence["largestFreeBytes"]) == (
        sum(taking),
        max(taking, default=0),
    )
    held = Counter()
    for _, gpu in shared:
        held[gpu["model"]] += gpu["memoryHeldBytes"]
    assert {each["model"]: each["heldBytes"] for each in own["models"]} == held
    unbound = {each["pod"]["uid"] for each in documents["inspect"]["pending"] if not each["node"]}
    assert sentence["waitingPods"] >= len(unbound) > 0 or not unbound


def test_what_pods_use_is_shown_where_exporters_measure_it(pages, exporters):
    for path, (html, _) in pages.items():
        assert ("exporters 1 of 2" in html) == bool(exporters), path
        assert ("what pods use is not measured" in html) != bool(exporters), path
    if not exporters:
        return
    gpus = {path: own["used"] for path, (_, own) in pages.items() if path.startswith("/gpus/")}
    assert sorted(amount for used in gpus.values() for amount in used.values()) == [GIB, 3 * GIB]
    html, own = pages["/"]
    assert [model["usedBytes"] for model in own["models"]] == [4 * GIB]
    assert any("127.0.0.1:1: connection refused" in note for note in own["notes"])
    (problem,) = [each for each in own["problems"] if each["code"] == "library_not_mapped"]
    assert (problem["name"], problem["severity"]) == ("a", "error")
    html, own = pages["/pods/ml/a"]
    assert own["use"]["usedMemoryBytes"] == 3 * GIB
    assert "limited" in [step["step"] for step in own["explanation"]["steps"]]


def test_no_text_has_a_number_of_its_own(pages):
    for path, (html, own) in pages.items():
        known = texts(own).lower()
        for text in PageNumbers(html).loose:
            parts = re.split(r" · |: |\(|\)|, |; ", text)
            for part in filter(re.compile(r"\d").search, parts):
                assert part.strip(" .·").lower() in known, (path, text)


def test_a_number_has_one_place_on_a_page(pages):
    for path, (html, _) in pages.items():
        ids = PageNumbers(html).ids
        assert not {each for each in ids if ids.count(each) > 1}, path


def test_what_fits_is_what_the_printed_command_answers(dump, documents):
    site = site_of(dump)
    path = "/fit{}?memory=2.5&cores=20"
    html = get(site, path.format("")).body.decode()
    own = as_json(get(site, path.format(".json")).body)
    shown = {(owner, where): value for owner, where, value in PageNumbers(html).numbers}
    asked = documents["inspect"]["rooms"] or documents["inspect"]["nvidia"]
    assert bool(own["systems"]) == bool(asked)
    for each in own["systems"]:
        words = (*shlex.split(each["command"])[1:], *FLAGS, "-o", "json", "--from", dump)
        answer = as_json(CliRunner().invoke(main, words).stdout)
        assert {**each["answer"], "notes": []} == {**answer, "notes": []}
        assert shown[f"fit-{each['system']}", ("pods",)] == str(answer["pods"])


@pytest.mark.parametrize(
    "query", ["", "memory=", "memory=-1", "memory=nan", "memory=1e99", "memory=x"]
)
def test_numbers_out_of_range_ask_nothing(dump, query):
    answer = get(site_of(dump), f"/fit.json?{query}")
    assert as_json(answer.body)["systems"] == []
