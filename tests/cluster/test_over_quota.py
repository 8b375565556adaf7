"""A namespace over its quota on a real API server: the mark, its right, and the policy."""

import json

import pytest
import yaml
from click.testing import CliRunner

from tests.cluster.charting import install
from tests.cluster.reconciling import AT_ONCE, HOME, Command, staged, with_rights
from tests.reconciler.samples import node, pod
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.deploy_objects import kinds
from tests.support.waiting import wait_until
from vgpu.quota.check import OVER_QUOTA
from vgpucli.main import main

RULES = {
    "over_quota": {"mode": "off"},
    "quota_drift": {"mode": "off"},
    "quota_mark": {"mode": "apply"},
}
CONFIG = AT_ONCE | {"rules": RULES}


@pytest.fixture(scope="module")
def rights(chart, tmp_path_factory):
    """The chart's objects that give the reconciler its rights, by the mode of the rule."""

    def of(mode):
        rules = RULES | {"quota_mark": {"mode": mode}}
        values = {"reconciler": {"mode": "apply", "config": {"rules": rules}}}
        roles = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        rendered = kinds(chart.rendered(values, f"--namespace={HOME}", release="marks"), *roles)
        file = tmp_path_factory.mktemp("rights") / f"{mode}.yaml"
        mine = [each for each in rendered if "reconciler" in each["metadata"]["name"]]
        file.write_text(yaml.safe_dump_all(mine))
        return file

    return of


def policy(kubeconfig):
    """What `vgpu quota manifests` prints of the policy."""
    result = CliRunner().invoke(main, ["quota", "manifests", f"--kubeconfig={kubeconfig}"])
    assert result.exit_code == 0, result.output
    return [
        each
        for each in yaml.safe_load_all(result.stdout)
        if each and each["kind"].startswith("ValidatingAdmissionPolicy")
    ]


def account_of(file):
    """The name of the ServiceAccount that the file's bindings are about."""
    return next(
        subject["name"]
        for each in yaml.safe_load_all(file.read_text())
        for subject in each.get("subjects", ())
    )


class Namespace:
    """Creates objects in a namespace without storing them, and shows its mark."""

    def __init__(self, client, name):
        self.client, self.name = client, name

    def admits(self, **limits):
        """Why a pod is refused; "" if it is admitted."""
        asked = {f"volcano.sh/{key}": amount for key, amount in limits.items()}
        made = objects.pod("more", self.name, limits=asked)
        try:
            self.client.raw("POST", f"/api/v1/namespaces/{self.name}/pods", made, dryRun="All")
        except Refused as refused:
            return str(refused)
        return ""

    @property
    def path(self):
        return f"/api/v1/namespaces/{self.name}"

    @property
    def mark(self):
        return self.client.get(self.path)["metadata"].get("annotations", {}).get(OVER_QUOTA)


def test_the_policy_refuses_pods_with_gpus_until_the_mark_is_gone(
    api, api_namespace, rights, tmp_path
):
    file = rights("apply")
    api.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    account = with_rights(api, file, account=account_of(file))
    command = Command(account, tmp_path, CONFIG)
    space = Namespace(api.client, api_namespace)
    api.client.patch(space.path, {"metadata": {"annotations": {"vgpu.dev/quota-gpus": "1"}}})
    made = install(api.client, policy(api.kubeconfig))
    try:
        with staged(api.client) as stage:
            stage.put(node("gpu-1"))
            held = stage.put(*(pod(name, namespace=api_namespace) for name in ("a", "b")))
            planned = command.plan("--rule=quota_mark=plan")
            assert planned.code == 0, planned
            assert space.mark is None
            applied = command.apply()
            assert [each["outcome"] for each in applied.actions] == ["done"], applied
            assert space.mark == "gpus"
            refused = f"namespace {api_namespace} exceeds its GPU quota (gpus)"
            wait_until(
                lambda: refused in space.admits(**{"vgpu-number": 1}), "the policy is in force"
            )
            assert space.admits() == "", "a pod without GPUs"
            assert space.admits(**{"vgpu-number": 0, "vgpu-memory": 1}) != ""
            assert command.apply().actions == [], "the mark stays as it is"
            api.client.delete(held[0], grace_seconds=0)
            (removed,) = command.apply().actions
            assert (removed["outcome"], removed["reason"]) == ("done", "mark_left")
            assert space.mark is None
            wait_until(lambda: space.admits(**{"vgpu-number": 1}) == "", "pods pass")
        events = api.client.get(f"/api/v1/namespaces/{api_namespace}/events")["items"]
        assert {each["involvedObject"]["kind"] for each in events} == {"Namespace"}
        assert {each["reason"] for each in events} == {"VgpuQuotaMarked"}
        restored = command.restore()
        assert restored.code == 0, restored
    finally:
        for each in made:
            api.client.delete(each)


def test_without_its_own_right_the_reconciler_sets_no_mark(api, api_namespace, rights, tmp_path):
    file = rights("plan")
    verbs = {
        verb
        for each in yaml.safe_load_all(file.read_text())
        for rule in each.get("rules", ())
        if "namespaces" in rule["resources"]
        for verb in rule["verbs"]
    }
    assert verbs == {"list", "watch"}


def test_the_type_check_of_kubernetes_finds_no_fault_with_the_expressions(control_plane):
    client = control_plane.client
    made = install(client, policy(control_plane.kubeconfig))

    def status():
        found = client.get(made[0]).get("status", {})
        return found if "typeChecking" in found else None

    try:
        checked = wait_until(status, "the expressions were checked")
        warnings = checked["typeChecking"].get("expressionWarnings", [])
        assert not [each for each in warnings if "sharepods" not in json.dumps(each)], warnings
    finally:
        for each in made:
            client.delete(each)
