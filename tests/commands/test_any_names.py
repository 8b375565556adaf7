"""Each command answers the same for any names of the resources, but for the names themselves."""

import json
import os
import re
import string

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.support import renamed_systems as renamed
from tests.support import sample_cluster as sample
from vgpu.schemes.resource_names import ORIGINAL_NAMES, roles, typed_role
from vgpucli.main import main

COMMANDS = [
    ("inspect",),
    ("inspect", "-o", "json"),
    ("inspect", "--by", "namespace"),
    ("explain", "pod", "ml/share"),
    ("explain", "pod", "ml/too-large"),
    ("explain", "pod", "ml/train-gpt-0"),
    ("explain", "pod", "ml/never-chosen"),
    ("explain", "node", "node1"),
    ("explain", "node", "gaia-1"),
    ("fit", "--request", "nvidia.com/gpu=1", "--request", "nvidia.com/gpumem=2000"),
    ("fit", "--request", "volcano.sh/vgpu-number=1", "--request", "volcano.sh/vgpu-memory=9000"),
    ("doctor",),
    ("reconcile", "plan", "-o", "json"),
    ("quota", "manifests", "--no-policy"),
]
NAMES = [
    (system, role, getattr(names, role))
    for system, names in ORIGINAL_NAMES.items()
    for role in roles(system)
]
ORIGINALS = [name for _, _, name in NAMES]
LETTERS = sorted({letter for name in ORIGINALS for letter in name if letter.isalpha()})


def objects():
    """All systems whose names may differ, HAMi as it was recorded."""
    beside = {"kube-1", "whole-card", "jupyter-0"}  # KubeShare's are NVIDIA's names
    others = [each for each in sample.items() if each["metadata"]["name"] not in beside]
    recorded = json.loads((renamed.CHART / "default.json").read_text())["items"]
    return [*others, *recorded]


def renaming(texts, names):
    """Replaces each name of a text by another one, longer names first."""
    by_name = dict(zip(texts, names, strict=True))
    known = sorted(texts, key=len, reverse=True)
    pattern = re.compile("|".join(rf"{re.escape(each)}(?![\w-])" for each in known))
    return lambda text: pattern.sub(lambda found: by_name[found[0]], text)


@st.composite
def other_names(draw):
    """Other letters in the same order: names sort as before, and tables have the same widths."""
    others = st.sets(
        st.sampled_from(string.digits + string.ascii_lowercase),
        min_size=len(LETTERS),
        max_size=len(LETTERS),
    )
    letters = str.maketrans("".join(LETTERS), "".join(sorted(draw(others))))
    return [name.translate(letters) for name in ORIGINALS]


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """What a command prints about the cluster with these names, with its exit status."""
    path = tmp_path_factory.mktemp("names") / "dump.json"
    content = json.dumps(sample.dump(objects()))

    def answered(words, names):
        rename = renaming(ORIGINALS, names)
        path.write_text(rename(content))
        os.utime(path, (sample.NOW, sample.NOW))
        flags = [
            f"--{system}.resource={typed_role(role)}={name}"
            for (system, role, original), name in zip(NAMES, names, strict=True)
            if name != original
        ]
        result = CliRunner().invoke(main, [*map(rename, words), "--from", str(path), *flags])
        return result.exit_code, renaming(names, ORIGINALS)(result.output)

    return answered


@pytest.fixture(scope="module")
def expected(answer):
    """The same with the originals' names, asked once."""
    answers = {words: answer(words, ORIGINALS) for words in COMMANDS}
    assert all(status in (0, 3) for status, _ in answers.values())
    return lambda words: answers[words]


@given(words=st.sampled_from(COMMANDS), names=other_names())
def test_the_answer_is_the_same_but_for_the_names(answer, expected, words, names):
    assert answer(words, names) == expected(words)
