"""Dumps of the page's tests."""

import json
import os

import pytest

from tests.support.sample_cluster import NOW


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    def write(objects):
        path = tmp_path_factory.mktemp("site") / "dump.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        os.utime(path, (NOW, NOW))
        return str(path)

    return write
