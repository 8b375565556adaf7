"""A thousand nodes and five thousand pods: three hundred more are sick, and all are repaired.

In `make test` a hundred nodes, and a tenth of the sick.
"""

import json
import subprocess
import sys
import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.reconciling import CLUSTER_RIGHTS, Command, with_rights
from tests.support.bed.fleet import create
from tests.support.bed.population import PODS_OF_A_SET
from tests.support.bed.stages import Life

SMALL, LARGE = (100, 1200), (1000, 5000)
"""Nodes and pods."""
REFUSED = Life.UNEXPECTED_ADMISSION_ERROR
LIVES = {
    REFUSED: ("refused", "unexpected_admission_error", 100),
    Life.OUT_OF_RESOURCE: ("refused", "out_of_resource", 80),
    Life.PRESTART_FAILED: ("prestart_failed", "prestart_check_failed", 60),
    Life.NO_GPU_TO_RUN: ("no_gpu_matched", "no_gpu_to_run", 40),
}
"""Life -> what finds it, why, and how many there are."""

BARE = 20
"""The number of further pods without a controller that would recreate them."""

RAISED = {
    "ages": {"failed": "0s", "clock_skew": "0s"},
    "limits": {"per_cycle": 1000, "per_node": 100, "per_namespace": 1000},
}


@pytest.fixture(scope="module")
def scale(full):
    """What the numbers of the sick are divided by."""
    return 1 if full else 10


@pytest.fixture(scope="module")
def big(fleet, full):
    return fleet(*(LARGE if full else SMALL))


@pytest.fixture(scope="module")
def versions(big):
    """Everything as it was before anybody fell ill: name -> version."""
    return versions_of(big.client.list("/api/v1/pods"))


def versions_of(pods):
    return {key(pod): pod["metadata"]["resourceVersion"] for pod in pods}


def key(obj):
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


@pytest.fixture(scope="module")
def ill(big, versions, scale):
    """Sick pods by life, each of a ReplicaSet that has healthy ones; and some of nobody."""
    sets = {key(each): each for each in big.client.list("/apis/apps/v1/replicasets")}
    owners = [sets[key(each)] for each in big.population.replica_sets()]
    lives = [life for life, (*_, number) in LIVES.items() for _ in range(number // scale)]
    pods = []
    for at, life in enumerate([*lives, *[REFUSED] * (BARE // scale)]):
        owner = owners[at] if at < len(lives) else None
        pod = big.population.pod(at * PODS_OF_A_SET, owner=owner, bound=int(time.time()), life=life)
        pod["metadata"]["name"] += f"-{life}" if owner else "-bare"
        pods.append(pod)
    made = create(big.client, pods)
    big.settle()
    settled = [big.client.get(pod) for pod in made]
    return settled[: len(lives)], settled[len(lives) :]


LAUNCHER = """
import json, os, subprocess, sys, time
begun = time.monotonic()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
measured = {
    "code": process.returncode,
    "seconds": time.monotonic() - begun,
    "cpu_seconds": usage.ru_utime + usage.ru_stime,
    "resident_mib": usage.ru_maxrss / 1024,
}
with open(sys.argv[1], "w") as file:
    json.dump(measured, file)
"""
"""Small: to the kernel, what a process takes begins with what its parent had when it was forked."""


class Measured:
    """A command that was run in another process, and what it took."""

    def __init__(self, folder, *words):
        measured = folder / "measured.json"
        ended = subprocess.run(
            [sys.executable, "-c", LAUNCHER, measured, *words],
            capture_output=True,
            text=True,
            check=True,
            env=Command.environment,
        )
        self.output, self.errors = ended.stdout, ended.stderr
        for name, number in json.loads(measured.read_text()).items():
            setattr(self, name, number)

    def __str__(self):
        return (
            f"{self.seconds:.1f} s, {self.cpu_seconds:.1f} s of CPU,"
            f" {self.resident_mib:.0f} MiB resident"
        )

    def numbers(self, name, *labels):
        """A metric of its output, by these labels."""
        found = Counter()
        for family in text_string_to_metric_families(self.output):
            for sample in family.samples:
                if sample.name == name:
                    found[tuple(sample.labels[label] for label in labels)] += int(sample.value)
        return +found


@pytest.mark.slow
@pytest.mark.thorough("fleets", smaller=True)
def test_all_that_may_be_repaired_is_and_nothing_else_is_touched(
    big, versions, ill, tmp_path, figure, scale
):
    sick, bare = ill
    account = with_rights(big.cluster, *CLUSTER_RIGHTS)
    command = Command(account, tmp_path, RAISED)

    planned = Measured(tmp_path, *command.line("plan", "--output=json", *command.flags()))
    figure(f"plan: {planned}")
    assert planned.code == 3, planned.errors
    plan = json.loads(planned.output)
    assert not plan["breaker"]["tripped"]
    found = Counter((entry["rule"], entry["reason"]) for entry in plan["actions"])
    assert found == {(rule, reason): number // scale for rule, reason, number in LIVES.values()}
    assert {entry["uid"] for entry in plan["actions"]} == {pod["metadata"]["uid"] for pod in sick}
    assert Counter(entry["skip"] for entry in plan["skipped"]) == {"bare_pod": BARE // scale}

    # What kwok has made of them by now: it may say a thing twice.
    bare_versions = versions_of(big.client.get(pod) for pod in bare)
    audit = f"--audit={command.audit}"
    applied = Measured(
        tmp_path, *command.line("apply", "--yes", "--output=prometheus", audit, *command.flags())
    )
    figure(f"apply: {applied}")
    requests = applied.numbers("vgpu_reconcile_api_requests_total", "verb", "code")
    figure(f"its requests: {dict(requests)}")
    assert applied.code == 0, applied.errors
    outcomes = applied.numbers("vgpu_reconcile_actions_total", "rule", "outcome")
    assert outcomes == {
        ("refused", "done"): 180 // scale,
        ("prestart_failed", "done"): 60 // scale,
        ("no_gpu_matched", "done"): 40 // scale,
    }
    for pod in sick:
        big.client.wait_gone(pod)

    again = Measured(tmp_path, *command.line("plan", "--output=json", *command.flags()))
    figure(f"the next plan: {again}")
    assert again.code == 0, again.errors
    rest = json.loads(again.output)
    assert (rest["actions"], rest["findings"]) == ([], [])
    assert {entry["uid"] for entry in rest["skipped"]} == {pod["metadata"]["uid"] for pod in bare}
    assert versions_of(big.client.list("/api/v1/pods")) == versions | bare_versions
