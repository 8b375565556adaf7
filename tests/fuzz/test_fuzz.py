"""The fuzzers run for a while: five minutes each in ``make test-thorough``, seconds elsewhere.

A defect that is planted in a parser is found.
"""

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
SECONDS, FULL_SECONDS = 2, 300
PLANTED_SECONDS = 30
"""Maximum time to search for a planted defect, in seconds: it is found in the first second."""
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
    "fuzz_frames.py": """
def decode(message, real=frames.decode):
    request = real(message)
    return request if getattr(request, "bytes", 0) < 2**62 else message[len(message)]
frames.decode = decode
""",
}
PLANTED = """
import atheris, runpy, sys
with atheris.instrument_imports():
    from kubeshare.tokens import frames
    from vgpu.schemes.volcano import hami_core
    from vgpu.sources import kubelet_checkpoint
{defect}
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def fuzz(folder, script, *before, seconds):
    """Run it with its findings in ``folder``; ``before`` are Python's arguments before its path."""
    findings = folder / "findings"
    findings.mkdir()
    limits = ("-seed=1", f"-max_total_time={seconds}", f"-timeout={INPUT_SECONDS}")
    done = subprocess.run(
        [sys.executable, *before, HERE / script, *limits, f"-artifact_prefix={findings}/"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds + 120,
    )
    return done, list(findings.iterdir())


@pytest.mark.thorough("fuzz", smaller=True)
@pytest.mark.parametrize("script", list(DEFECTS))
def test_no_bytes_break_the_parser(tmp_path, script, full):
    done, findings = fuzz(tmp_path, script, seconds=FULL_SECONDS if full else SECONDS)
    assert (done.returncode, findings) == (0, []), done.stdout[-4000:]
    assert "Done " in done.stdout  # libFuzzer's last word: it did run
    assert "NEW    cov:" in done.stdout  # and was led by what it covered


@pytest.mark.thorough("fuzz")
@pytest.mark.parametrize("script", list(DEFECTS))
def test_a_defect_in_the_parser_is_found(tmp_path, script):
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED.format(defect=DEFECTS[script]))
    done, findings = fuzz(tmp_path, script, planted, seconds=PLANTED_SECONDS)
    assert done.returncode != 0, done.stdout[-4000:]
    assert "IndexError" in done.stdout
    assert len(findings) == 1
    assert findings[0].name.startswith("crash-")
