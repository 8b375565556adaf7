"""What the chart renders, and the manifests: a real API server takes each object to the letter."""

import json

import pytest
import yaml

from deploy.manifests import FOLDER, MANIFESTS, NAMESPACE
from tests.cluster.charting import OPERATOR
from tests.support.bed import crds
from tests.support.deploy_objects import kinds


@pytest.fixture(scope="module")
def accepting(api, crd_files):
    """An API server that knows Prometheus Operator's kinds, and the namespaces that are used.

    They stay: without controllers a namespace that is deleted is neither gone nor of any use.
    """
    crds.load(api.client, *crd_files)
    for name in (NAMESPACE, "monitoring"):
        api.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return api


def accepts(api, files, folder):
    """Whether the API server takes all objects to the letter; a refusal names the file."""
    for name, documents in files.items():
        if documents:
            (folder / f"{name}.json").write_text("\n---\n".join(map(json.dumps, documents)))
    how = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts")
    output = api.kubectl("apply", *how, "--filename", str(folder))
    return len(output.splitlines()) == sum(map(len, files.values())) > 0


def test_the_api_server_accepts_what_is_rendered_to_the_letter(sets, accepting, tmp_path):
    assert accepts(accepting, sets, tmp_path)


def test_the_api_server_accepts_each_manifest_to_the_letter(accepting, tmp_path):
    manifests = {
        name: [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]
        for name in MANIFESTS
    }
    assert accepts(accepting, manifests, tmp_path)


def test_prometheus_operators_kinds_are_among_what_was_accepted(sets):
    rendered = [each for documents in sets.values() for each in documents]
    assert {each["kind"] for each in kinds(rendered, *OPERATOR)} == {*OPERATOR}
