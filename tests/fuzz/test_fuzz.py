"""The fuzzers run for a while: 30 s each in CI, 5 s elsewhere; and they would find a defect."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info >= (3, 14), reason="atheris is not made for this Python"),
]

HERE = Path(__file__).resolve().parent
SECONDS = 30 if os.environ.get("CI") else 5
INPUT_SECONDS = 10
"""An input that takes longer is a finding: a hang."""

# Each takes the place of a parser and fails on some of what the real one finds to be in order.
DEFECTS = {
    "fuzz_region.py": """
def decode(*arguments, real=hami_core.decode):
    region = real(*arguments)
    return region if region.priority == 0 else region.devices[len(region.devices)]
hami_core.decode = decode
""",
    "fuzz_checkpoint.py": """
def parse_checkpoint(*arguments, real=kubelet_checkpoint.parse_checkpoint):
    grants, rejections = real(*arguments)
    return [grant for grant in grants if grant.device_ids[0]], rejections
kubelet_checkpoint.parse_checkpoint = parse_checkpoint
""",
}
PLANTED = """
import atheris, runpy, sys
with atheris.instrument_imports():
    from vgpu.schemes import hami_core
    from vgpu.sources import kubelet_checkpoint
{defect}
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def fuzz(folder, script, *before):
    """Run it with its findings in ``folder``; ``before`` are Python's arguments before its path."""
    findings = folder / "findings"
    findings.mkdir()
    limits = ("-seed=1", f"-max_total_time={SECONDS}", f"-timeout={INPUT_SECONDS}")
    done = subprocess.run(
        [sys.executable, *before, HERE / script, *limits, f"-artifact_prefix={findings}/"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=SECONDS + 120,
    )
    return done, list(findings.iterdir())


@pytest.mark.parametrize("script", list(DEFECTS))
def test_no_bytes_break_the_parser(tmp_path, script):
    done, findings = fuzz(tmp_path, script)
    assert (done.returncode, findings) == (0, []), done.stdout[-4000:]
    assert "Done " in done.stdout  # libFuzzer's last word: it did run
    assert "NEW    cov:" in done.stdout  # and was led by what it covered


@pytest.mark.parametrize("script", list(DEFECTS))
def test_a_defect_in_the_parser_is_found(tmp_path, script):
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED.format(defect=DEFECTS[script]))
    done, findings = fuzz(tmp_path, script, planted)
    assert done.returncode != 0, done.stdout[-4000:]
    assert "IndexError" in done.stdout
    assert len(findings) == 1
    assert findings[0].name.startswith("crash-")
