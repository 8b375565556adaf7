"""The chart, by the real helm: what it renders of its values."""

import pytest
import yaml
from click.testing import CliRunner

from deploy.manifests import MANIFESTS, unpublished
from deploy.manifests import main as write_manifests
from tests.cluster.charting import VALUES, HelmRefused
from tests.support.deploy_objects import containers, kinds, parse
from tests.support.doc_pages import values_files
from tests.support.environment import ROOT
from vgpu import __version__
from vgpu.sources.mps import DEFAULT_MPS_DIR

each_set = pytest.mark.parametrize("name", VALUES)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_has_nothing_to_say_against_it(chart, values):
    assert "0 chart(s) failed" in chart.lint(values)


@each_set
def test_programs_accept_the_arguments_of_the_chart(sets, name):
    for _, _, container in containers(sets[name]):
        parse(container["args"])


@pytest.mark.parametrize("values", values_files((ROOT / "docs" / "install.md").read_text()))
def test_the_files_of_the_installation_page_render_to_programs_that_start(chart, values):
    documents = chart.rendered(values)
    assert all(kinds(documents, kind) for kind in ("DaemonSet", "Deployment", "PodMonitor"))
    for _, _, container in containers(documents):
        parse(container["args"])


def test_the_manifests_are_rendered_from_the_chart(tools):
    checked = CliRunner().invoke(write_manifests, ["--check", f"--helm={tools.path('helm')}"])
    assert checked.exit_code == 0, checked.output


def test_what_can_be_switched_off_leaves_nothing(sets):
    assert sets["nothing"] == []


MUTATING = "MutatingAdmissionPolicy"

GETTING_AN_IMAGE = (
    "image.repository is empty",
    "make image",
    "ctr --namespace k8s.io images import ARCHIVE",
    "kind load image-archive",
    "k3s ctr images import",
    "minikube image load",
    "skopeo copy",
    "image.digest",
)


def test_a_chart_without_an_image_explains_once_how_to_get_one(chart):
    with pytest.raises(HelmRefused) as refused:
        chart.rendered({"image": {}})
    message = str(refused.value)
    assert [words for words in GETTING_AN_IMAGE if message.count(words) != 1] == []
    assert chart.rendered({"image": {}} | VALUES["nothing"]) == []


def test_an_image_is_known_by_its_digest_before_its_tag(chart):
    def images(**image):
        documents = chart.rendered({"image": {"repository": "localhost:5000/vgpu"} | image})
        return {container["image"] for _, _, container in containers(documents)}

    digest = f"sha256:{'0' * 64}"
    assert images() == {f"localhost:5000/vgpu:{__version__}"}
    assert images(tag="main") == {"localhost:5000/vgpu:main"}
    assert images(tag="main", digest=digest) == {f"localhost:5000/vgpu@{digest}"}


def test_manifests_of_a_release_name_its_image(tools, tmp_path):
    image = f"registry.example.com/vgpu@sha256:{'0' * 64}"
    options = [f"--helm={tools.path('helm')}", f"--folder={tmp_path}", f"--image={image}"]
    written = CliRunner().invoke(write_manifests, options)
    assert written.exit_code == 0, written.output
    assert {path.name for path in tmp_path.iterdir()} == set(MANIFESTS)
    assert unpublished(tmp_path) == []
    for path in tmp_path.iterdir():
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each]
        assert {container["image"] for _, _, container in containers(documents)} <= {image}


def test_no_profile_is_taken_away_by_a_field_that_the_cluster_does_not_know(chart):
    values = {"exporter": {"profile": "full"}, "reconciler": {"node": {"daemonSet": True}}}
    for version, field in (("1.26.0", False), ("1.29.9", False), ("1.30.0", True)):
        documents = chart.rendered(values, f"--kube-version={version}")
        for workload in kinds(documents, "DaemonSet"):
            template = workload["spec"]["template"]
            (container,) = template["spec"]["containers"]
            mark = f"container.apparmor.security.beta.kubernetes.io/{container['name']}"
            profile = template["metadata"].get("annotations", {}).get(mark)
            assert profile == (None if field else "unconfined")
            assert ("appArmorProfile" in container["securityContext"]) is field


def test_an_admission_policy_is_of_a_version_that_the_cluster_serves(chart):
    values = {"scheduler": {"policies": {"validate": True, "mutate": True}}}
    with pytest.raises(HelmRefused, match=r"needs Kubernetes 1\.30 or newer"):
        chart.rendered(values, "--kube-version=1.29.9")
    group = "admissionregistration.k8s.io"
    for flags, version in (((), "v1beta1"), ((f"--api-versions={group}/v1/{MUTATING}",), "v1")):
        (policy,) = kinds(chart.rendered(values, *flags), MUTATING)
        assert policy["apiVersion"] == f"{group}/{version}"


def test_pods_that_hamis_webhook_refuses_are_warned_about_where_the_scheduler_is_enabled(chart):
    def actions(version="1.36.0", *, enabled=True, **policies):
        scheduler = {"enabled": enabled, "allowAnonymous": True, "policies": policies}
        documents = chart.rendered({"scheduler": scheduler}, f"--kube-version={version}")
        bindings = kinds(documents, "ValidatingAdmissionPolicyBinding")
        return {
            each["metadata"]["name"].rpartition("hami-pods")[2]: each["spec"]["validationActions"]
            for each in bindings
            if "hami-pods" in each["metadata"]["name"]
        }

    assert actions() == {"-refused": ["Warn", "Audit"]}
    assert actions("1.29.9") == actions(refuse="none") == actions(enabled=False) == {}
    assert actions(refuse="deny") == actions(enabled=False, refuse="deny") == {"-refused": ["Deny"]}
    assert actions(validate=True) == {"-refused": ["Deny"], "": ["Deny"]}
    with pytest.raises(HelmRefused, match=r"refuse: deny needs Kubernetes 1\.30 or newer"):
        actions("1.29.9", refuse="deny")


def test_hamis_defaults_are_flags_of_the_scheduler(chart):
    def args(**hami):
        scheduler = {"enabled": True, "allowAnonymous": True, "hami": hami}
        (workload,) = (
            each
            for each in kinds(chart.rendered({"scheduler": scheduler}), "Deployment")
            if each["metadata"]["name"].endswith("-scheduler")
        )
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        return [arg for arg in container["args"] if arg.startswith("--hami.")]

    assert args() == []
    assert args(defaultMemory=4000, defaultCores=30, defaultGPUNum=2) == [
        "--hami.default-memory=4000",
        "--hami.default-cores=30",
        "--hami.default-gpu-num=2",
    ]
    assert args(defaultGPUNum=0) == ["--hami.default-gpu-num=0"]


def test_a_new_configuration_means_new_pods(chart):
    def pods(config):
        documents = chart.rendered({"reconciler": {"config": config}})
        (workload,) = kinds(documents, "Deployment")
        return workload["spec"]["template"]

    assert pods({"every": "1m"}) != pods({"every": "2m"}) == pods({"every": "2m"})


def test_locked_metrics_are_probed_at_a_port_of_their_own(sets):
    for _, _, container in containers(sets["locked"]):
        if container["name"] == "tokens":  # it declares no port
            probed = {"name": 9502, "containerPort": 9502}
        else:
            _, probed = container["ports"]
            assert len(probed["name"]) <= 15  # the API server's limit
        assert f"--web.probe-address=:{probed['containerPort']}" in container["args"]
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == probed["name"]
        assert "--web.config.file=/etc/vgpu-web/web-config.yaml" in container["args"]


@pytest.mark.parametrize("profile", ["minimal", "standard", "full"])
def test_the_files_of_mps_are_mounted_where_they_are_named(chart, profile):
    exporter = {"profile": profile}
    values = {"exporter": exporter, "reconciler": {"node": {"daemonSet": True}}}
    assert not list(_mps_mounts(chart.rendered(values)))
    rendered = chart.rendered(values | {"paths": {"mps": "/data/mps"}})
    readers = {"reconcile"} | ({"exporter"} if profile != "minimal" else set())
    assert dict(_mps_mounts(rendered)) == dict.fromkeys(readers, "/data/mps")


def _mps_mounts(rendered):
    """The programs that have the folder where they look for it, and where it is on the node."""
    for _, spec, container in containers(rendered):
        for mount in container.get("volumeMounts", ()):
            if mount["name"] == "mps":
                assert mount == {"name": "mps", "mountPath": DEFAULT_MPS_DIR, "readOnly": True}
                (volume,) = (each for each in spec["volumes"] if each["name"] == "mps")
                yield container["args"][0], volume["hostPath"]["path"]


def test_nvidias_resources_have_one_name_for_all_programs(chart):
    values = {
        "nvidia": {"resources": ["example.com/gpu"]},
        "reconciler": {"node": {"daemonSet": True}},
        "scheduler": {"enabled": True, "allowAnonymous": True},
    }
    readers = [
        container["args"][0]
        for _, _, container in containers(chart.rendered(values))
        if "--nvidia.resource=example.com/gpu" in container["args"]
    ]
    assert sorted(readers) == ["exporter", "reconcile", "reconcile", "scheduler"]


def test_replicas_are_spread_softly_by_default(chart):
    def spread(**values):
        (workload,) = kinds(chart.rendered({"reconciler": values}), "Deployment")
        spec = workload["spec"]
        return spec["selector"], spec["template"]["spec"]["topologySpreadConstraints"]

    selector, (one,) = spread()
    assert one["labelSelector"] == selector
    assert one["whenUnsatisfiable"] == "ScheduleAnyway"
    zones = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    assert spread(topologySpreadConstraints=[zones]) == (selector, [zones])
