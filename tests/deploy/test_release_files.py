"""What a release writes beside the image: the chart's values, the plugin's manifest, the unit, …"""

import json
import re

import pytest
import yaml

from deploy.project import Project
from deploy.release import chart, deb, krew, provenance, readme, sbom
from deploy.release.commands import ReleaseError
from deploy.release.debian import parse
from deploy.release.platforms import PLATFORMS
from deploy.release.source import SourceTree
from tests.support.environment import ROOT

SOURCE = SourceTree(ROOT, 1_764_000_000, "c" * 40)
DIGEST = f"sha256:{'d' * 64}"
PROJECT = Project(
    address="https://forge.example.com/team/vgpu",
    site="https://docs.example.com/vgpu",
    image="registry.example.com/team/vgpu",
    security_contact="security@example.com",
)


def test_the_packaged_chart_names_the_image_by_digest_and_keeps_all_else():
    text = (ROOT / "deploy" / "chart" / "vgpu" / "values.yaml").read_text()
    with_image = chart.with_image(text, PROJECT.image, DIGEST)
    values = yaml.safe_load(with_image)
    assert values["image"] | {"repository": "", "digest": ""} == yaml.safe_load(text)["image"]
    assert (values["image"]["repository"], values["image"]["digest"]) == (PROJECT.image, DIGEST)
    assert len(with_image.splitlines()) == len(text.splitlines())


def test_a_chart_that_already_names_an_image_is_refused():
    with pytest.raises(ReleaseError, match=r"image\.repository"):
        chart.with_image('image:\n  repository: other\n  digest: ""\n', PROJECT.image, DIGEST)


def test_the_plugins_manifest_has_each_archive_with_its_hash(tmp_path):
    archives = {platform: tmp_path / f"{name}.tar.gz" for name, platform in PLATFORMS.items()}
    for name, file in zip(PLATFORMS, archives.values(), strict=True):
        file.write_text(name)
    manifest = yaml.safe_load(krew.manifest(SOURCE, PROJECT, "https://d.example.com", archives))
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["spec"]["version"] == f"v{SOURCE.version}"
    amd64, arm64 = manifest["spec"]["platforms"]
    assert amd64["uri"] == "https://d.example.com/amd64.tar.gz"
    assert re.fullmatch("[0-9a-f]{64}", arm64["sha256"])
    assert amd64["sha256"] != arm64["sha256"]


def test_the_debian_packages_unit_runs_the_packages_program():
    unit = deb.unit(SOURCE)
    assert "ExecStart=/usr/bin/vgpu exporter" in unit
    assert "/opt/vgpu" not in unit


def test_the_readmes_links_lead_to_the_site():
    text = readme.published((ROOT / "README.md").read_text(), PROJECT.site)
    assert f"]({PROJECT.site}/install.html)" in text
    assert f"]({PROJECT.site}/gpu-shares.png)" in text
    assert f"]({PROJECT.site}/changelog.html)" in text
    assert "](docs/" not in text


def test_a_readme_with_a_picture_from_outside_the_site_is_refused():
    with pytest.raises(ReleaseError, match=r"deploy/a\.png"):
        readme.published('<img src="deploy/a.png">\n', PROJECT.site)


def test_the_wheels_bill_has_the_locked_requirements_and_marks_those_of_extras():
    document = json.loads(sbom.wheel_sbom(SOURCE, "a" * 64))
    assert document["metadata"]["timestamp"] == "2025-11-24T16:00:00+00:00"
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    optional = {part["name"] for part in document["components"] if part.get("properties")}
    assert optional == {"grpcio", "protobuf", "pyelftools"}
    assert json.loads(sbom.wheel_sbom(SOURCE, "a" * 64)) == document


def test_an_images_bill_has_debians_packages_of_its_platform_with_hashes():
    lock = parse(SOURCE.lock("debian"))
    document = json.loads(sbom.image_sbom(SOURCE, lock, PLATFORMS["arm64"], DIGEST))
    debian = [part for part in document["components"] if part["purl"].startswith("pkg:deb/")]
    assert {part["name"]: part["hashes"][0]["content"] for part in debian} == {
        package.name: package.sha256 for package in lock.of("arm64")
    }
    assert any(part["purl"] == f"pkg:pypi/vgpu@{SOURCE.version}" for part in document["components"])


def test_the_provenance_names_every_file_the_commit_and_the_locks(tmp_path, monkeypatch):
    monkeypatch.delenv(provenance.BUILDER, raising=False)
    file = tmp_path / "vgpu.whl"
    file.write_text("x")
    document = json.loads(provenance.statement(SOURCE, PROJECT, [file]))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert [object_name["name"] for object_name in document["subject"]] == ["vgpu.whl"]
    commit, *locks = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": SOURCE.commit}
    assert [lock["uri"] for lock in locks] == [
        f"requirements/{name}.lock" for name in provenance.LOCKS
    ]
    assert document["predicate"]["runDetails"]["builder"]["id"].startswith(PROJECT.site)
