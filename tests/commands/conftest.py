"""The objects of a test file, ``ITEMS``, as a dump and at an API server."""

import json
import os
from urllib.parse import parse_qsl

import pytest
from click.testing import CliRunner
from urllib3 import HTTPConnectionPool

from simulator.apiserver import ALL_KINDS, ApiServer
from simulator.store import ObjectStore
from tests.support import sample_cluster as sample
from tests.support.sample_cluster import NOW
from vgpucli.main import main

KINDS = {kind.name: kind for kind in ALL_KINDS}


def dumped(folder, items):
    """The flag that reads a dump of these objects."""
    path = folder / "dump.json"
    path.write_text(json.dumps(sample.dump(items)))
    os.utime(path, (NOW, NOW))
    return "--from", str(path)


def printed_words(words, status=0):
    """All words that a command prints on standard output, with one blank between them."""
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == status, result.output
    return " ".join(result.stdout.split())


@pytest.fixture
def requests(monkeypatch):
    """The requests to API servers, in their order: path and query, without the size of pages."""
    seen, urlopen = [], HTTPConnectionPool.urlopen

    def noted(pool, method, url, *rest, **more):
        path, _, query = url.partition("?")
        seen.append(" ".join((path, *(value for key, value in parse_qsl(query) if key != "limit"))))
        return urlopen(pool, method, url, *rest, **more)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", noted)
    return seen


@pytest.fixture
def dump(tmp_path, request):
    return dumped(tmp_path, request.module.ITEMS)


@pytest.fixture
def cluster(tmp_path, request):
    store = ObjectStore()
    for item in request.module.ITEMS:
        store.create(KINDS[item["kind"]], item)
    path = tmp_path / "kubeconfig"
    with ApiServer(store) as api:
        path.write_text(api.kubeconfig())
        yield "--kubeconfig", str(path)


@pytest.fixture(params=["dump", "cluster"])
def source(request):
    return request.getfixturevalue(request.param)
