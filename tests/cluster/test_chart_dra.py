"""What the chart lets programs read of dynamic resource allocation: nothing unless asked to."""

import pytest

from tests.support.deploy_objects import containers, kinds


def exporter(rendered):
    """The pod's spec and the container of the exporter."""
    return next(each[1:] for each in containers(rendered) if each[2]["args"][0] == "exporter")


@pytest.mark.parametrize(("mode", "is_read"), [(None, False), ("off", False), ("plan", True)])
def test_resource_claims_may_be_read_only_with_their_rule(chart, mode, is_read):
    rules = {} if mode is None else {"resource_claim": {"mode": mode}}
    rendered = chart.rendered({"reconciler": {"config": {"rules": rules}}})
    found = [
        (rule["resources"], rule["verbs"])
        for role in kinds(rendered, "ClusterRole")
        for rule in role["rules"]
        if "resource.k8s.io" in rule["apiGroups"]
    ]
    expected = (["resourceclaims", "resourceslices"], ["list", "watch"])
    assert found == ([expected] if is_read else [])
    values = {"node": {"daemonSet": True, "config": {"rules": rules}}}
    on_node = chart.rendered({"reconciler": values})
    found = [
        (rule["resources"], rule["verbs"])
        for role in kinds(on_node, "ClusterRole")
        for rule in role["rules"]
        if "resource.k8s.io" in rule["apiGroups"]
    ]
    own = [(["resourceclaims"], ["get"]), (["resourceslices"], ["list"])]
    assert found == (own if is_read else [])


@pytest.mark.parametrize(("api", "dra"), [(False, False), (True, False), (False, True)])
def test_the_exporter_may_read_resource_claims_only_if_asked_to(chart, api, dra):
    rendered = chart.rendered({"exporter": {"api": api, "dra": dra}})
    spec, container = exporter(rendered)
    assert ("--collector.dra" in container["args"]) == dra
    assert spec["automountServiceAccountToken"] == (api or dra)
    readable = {
        (resource, verb)
        for role in kinds(rendered, "ClusterRole")
        if role["metadata"]["name"].endswith("exporter")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    of_dra = {("resourceclaims", "get"), ("resourceslices", "list")}
    of_api = {("pods", "list"), ("pods", "watch"), ("nodes", "get")}
    assert readable == (of_dra if dra else of_api if api else set())


def test_of_the_kubelets_folder_only_that_of_the_driver_is_mounted(chart):
    """The kubelet's folder has the Secrets of all pods."""
    rendered = chart.rendered({"exporter": {"draCheckpoint": True}})
    spec, container = exporter(rendered)
    (volume,) = (each for each in spec["volumes"] if each["name"] == "dra-nvidia")
    assert volume["hostPath"]["path"] == "/var/lib/kubelet/plugins/gpu.nvidia.com"
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "dra-nvidia")
    assert mount["readOnly"]


def test_the_kubelets_folder_is_mounted_without_the_volumes_of_pods(chart):
    rendered = chart.rendered({"exporter": {"draState": True}})
    spec, container = exporter(rendered)
    volumes = {each["name"]: each for each in spec["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert volumes["kubelet"]["hostPath"]["path"] == "/var/lib/kubelet"
    hidden = mounts["/var/lib/kubelet/pods"]
    assert "emptyDir" in volumes[hidden["name"]]
    assert mounts["/var/lib/kubelet"]["readOnly"]
    assert hidden["readOnly"]


@pytest.mark.parametrize("is_on", [False, True])
def test_cdi_specs_are_read_only_where_asked_for(chart, is_on):
    """By the exporter, and by the node's reconciler with the rule that reports what is missing."""
    mode = "plan" if is_on else "off"
    node = {"daemonSet": True, "config": {"rules": {"resource_claim": {"mode": mode}}}}
    rendered = chart.rendered({"exporter": {"draSpecs": is_on}, "reconciler": {"node": node}})
    folders = {"/var/run/cdi", "/etc/cdi"}
    for program in ("exporter", "reconcile"):
        (container,) = (
            container
            for _, _, container in containers(kinds(rendered, "DaemonSet"))
            if container["args"][0] == program
        )
        given = {f"--dra.spec-dir={folder}" for folder in folders}
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert given.intersection(container["args"]) == (given if is_on else set())
        assert folders.intersection(mounts) == (folders if is_on else set())
        assert all(mounts[folder]["readOnly"] for folder in folders if is_on)
    driver = "/var/lib/kubelet/plugins/gpu.nvidia.com"
    assert (driver in mounts) == is_on
