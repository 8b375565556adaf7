"""What HAMi 2.10 wrote under its own names and under other ones, and what we read of it.

The recordings are in ``tests/golden/hami-renamed``; the README there has how they were made.
"""

import json
import os

import pytest

from exporter.sampler import codecs
from tests.commands.conftest import printed_words
from tests.support import renamed_systems as renamed
from vgpu.model.facts import Gpu, GpuSample, KubeletSample, ProcessSample
from vgpu.model.names import PodRef
from vgpu.model.units import GIB, MIB
from vgpu.schemes.resource_names import ORIGINAL_NAMES
from vgpu.sources.kubelet_checkpoint import parse_checkpoint
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.samples import Observation

READ_AT = 1_795_909_000
"""Unix seconds at which the dumps are read: three hours and a half after both were made."""
CONFIG_MAP = renamed.CHART / "device-config.json"
OF_TIME = {"hami.io/bind-time", "hami.io/vgpu-time"}
HELD = {"share": [4], "memory-only": [2], "half": [8], "two-gpus": [1, 1]}
"""GiB that the pods got of their GPUs."""


def read(name):
    return json.loads((renamed.CHART / name).read_text())


def originally(case, value):
    """The value as text, with the originals' names."""
    text = json.dumps(value, sort_keys=True).replace("~1", "/")  # as JSON patches have it
    if case == "renamed":
        for role, name in sorted(renamed.NAMES["hami"].items(), key=lambda item: -len(item[1])):
            text = text.replace(name, renamed.original("hami", role))
    return json.loads(text)


def written(case):
    """What the scheduler, its webhook and the device plugin wrote, without times and UIDs."""
    node, *pods, quota = read(f"{case}.json")["items"]
    seen = read(f"{case}.seen.json")
    grants, _ = parse_checkpoint((renamed.CHART / f"{case}.checkpoint.json").read_bytes())
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
    annotations = node["metadata"]["annotations"]
    return originally(
        case,
        {
            "register": sorted(
                json.loads(annotations["hami.io/node-nvidia-register"]), key=lambda gpu: gpu["id"]
            ),
            "node": sorted(annotations),
            "advertised": node["status"]["allocatable"],
            "quota": quota["spec"],
            "pods": {
                pod["metadata"]["name"]: [
                    {
                        key: value
                        for key, value in pod["metadata"].get("annotations", {}).items()
                        if key not in OF_TIME
                    },
                    pod["metadata"].get("labels"),
                    pod["spec"]["containers"][0].get("env"),
                    pod["spec"]["containers"][0]["resources"],
                    pod["spec"]["schedulerName"],
                ]
                for pod in pods
            },
            "webhook": {
                name: [answer["allowed"], sorted(map(json.dumps, answer["patch"]))]
                for name, answer in seen["webhook"].items()
            },
            "events": seen["events"],
            "answers": {
                names[grant.pod_uid]: [
                    grant.resource,
                    sorted(each.rpartition("-")[0] for each in grant.device_ids),
                    {key: value for key, value in grant.env.items() if "CACHE" not in key},
                ]
                for grant in grants
            },
        },
    )


@pytest.fixture
def dump(tmp_path):
    """The flags that read a recording, its ConfigMap in a second dump."""

    def flags(case):
        words = []
        for name in (f"{case}.json", *(["device-config.json"] if case == "renamed" else [])):
            path = tmp_path / name
            path.write_bytes((renamed.CHART / name).read_bytes())
            os.utime(path, (READ_AT, READ_AT))
            words += ["--from", str(path)]
        return words

    return flags


def test_other_names_change_nothing_else_of_what_hami_writes():
    assert written("renamed") == written("default")


@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("inspect", "--by", "namespace"),
        ("explain", "node", "node1"),
        ("explain", "pod", "ml/share"),
        ("explain", "pod", "ml/two-gpus"),
        ("explain", "pod", "ml/too-large"),
        ("reconcile", "plan"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_the_answers_are_those_of_the_original_names(dump, words):
    """The ConfigMap of the chart's release is in a dump of its own."""

    def answer(case):
        printed = printed_words((*words, *dump(case)))
        return originally(case, without_times(printed))

    assert answer("renamed") == answer("default")
    if words == ("inspect",):
        assert "ml/too-large 20.0 GiB hami" in " ".join(answer("renamed"))


def without_times(printed):
    """The printed words but for times."""
    return [word for word in printed.split() if not word.startswith("2026-11-28T20:0")]


@pytest.mark.parametrize("case", ["default", "renamed"])
def test_the_exporter_has_the_shares_by_the_kubelets_records(case):
    """Without flags and without the API server: by the environment in HAMi's answers."""
    pods = read(f"{case}.json")["items"][1:-1]
    refs = {
        pod["metadata"]["uid"]: PodRef(pod["metadata"]["uid"], "ml", pod["metadata"]["name"])
        for pod in pods
    }
    grants, _ = parse_checkpoint((renamed.CHART / f"{case}.checkpoint.json").read_bytes())
    uuids = [grant.env["NVIDIA_VISIBLE_DEVICES"].split(",") for grant in grants]
    gpus = sorted({each for of_grant in uuids for each in of_grant})
    seen = Observation(
        gpu=GpuSample(
            tuple(
                Gpu(each, number, {}, {("memory_total_bytes",): 16 * GIB})
                for number, each in enumerate(gpus)
            )
        ),
        process=ProcessSample({}, True, frozenset(refs)),
        kubelet=KubeletSample(refs, {}, grants),
    )
    builder = LedgerBuilder(codecs(MIB, MIB), "node1")
    builder.ledger(seen)
    held = {}
    for share in builder.usage(seen).shares:
        held.setdefault(share.pod.name, []).append(share.limit_bytes / GIB)
    assert held == HELD
    names = {"renamed": renamed.NAMES["hami"]["count"], "default": ORIGINAL_NAMES["hami"].count}
    assert {grant.resource for grant in grants} == {names[case]}
