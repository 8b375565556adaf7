"""Facts for checks of the doctor, from objects as the API server has them, without a file."""

import json

import msgspec
import pytest

from tests.support import sample_cluster as sample
from tests.support.installed import NOW
from vgpucli.doctor import read as doctor_read


def facts_of(*items, **changes):
    """The facts of items, with other fields changed."""
    content = json.dumps(sample.dump(list(items))).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_read, "read_dump", lambda _: (content, NOW))
        return msgspec.structs.replace(doctor_read.from_dumps(["any"], {}), **changes)
