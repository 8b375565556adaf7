"""Reasons to refuse a release, and the hooks that sign one."""

import re
import subprocess
from pathlib import Path

import pytest

from deploy.release.checks import dirty, refusals, undated, unfilled, wrong_tag
from deploy.release.commands import ReleaseError
from deploy.release.signing import sign
from tests.support.environment import required_tool

FILLED = """\
address = "https://forge.example.com/team/vgpu"
site = "https://docs.example.com/vgpu"
image = "registry.example.com/team/vgpu"
security_contact = "security@example.com"
"""
KEYS = ("address", "site", "image", "security_contact")


def test_all_reasons_of_a_repository_are_reported_at_once(tmp_path):
    git = required_tool("git", "git")
    subprocess.run([git, "init", "--quiet", tmp_path], check=True)
    author = ("-c", "user.name=publisher", "-c", "user.email=publisher@example.com")
    commit = ("commit", "--quiet", "--allow-empty", "--message=first")
    subprocess.run([git, *author, *commit], cwd=tmp_path, check=True)
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "project.toml").write_text(re.sub('".*"', '""', FILLED))
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## Unreleased\n\n- new\n")
    assert list(refusals(tmp_path, "1.2.3")) == [
        "changes are not committed: CHANGELOG.md, deploy/",
        "CHANGELOG.md: the first section has to be `## 1.2.3 - YYYY-MM-DD`, with its date",
        f"deploy/project.toml: {', '.join(KEYS)}: empty; the publisher fills them in",
    ]


def test_changes_that_are_not_committed_are_named_but_not_all_of_them():
    assert not list(dirty(""))
    assert list(dirty(" M a.py\n?? b.py\n")) == ["changes are not committed: a.py, b.py"]
    (reason,) = dirty("".join(f"?? {name}\n" for name in "abcdefg"))
    assert reason.endswith(": a, b, c, d, e, …")


@pytest.mark.parametrize(
    ("tags", "refused"),
    [("", False), ("v1.2.3\n", False), ("other\nv1.2.3\n", False), ("v1.2.4\n", True)],
)
def test_a_tag_of_another_version_is_refused(tags, refused):
    assert bool(list(wrong_tag(tags, "1.2.3"))) == refused


@pytest.mark.parametrize(
    ("changelog", "refused"),
    [
        ("# C\n\n## 1.2.3 - 2026-11-23\n\n- new\n", False),
        ("# C\n\n## [1.2.3] – 2026-11-23\n\n- new\n", False),
        ("# C\n\n## Unreleased\n\n## 1.2.3 - 2026-11-23\n\n- new\n", False),
        ("# C\n\n## Unreleased\n\n- more\n\n## 1.2.3 - 2026-11-23\n\n- new\n", True),
        ("# C\n\n## 1.2.3\n\n- new\n", True),
        ("# C\n\n## 1.2.3 - 2026-13-23\n\n- new\n", True),
        ("# C\n\n## 1.2.2 - 2026-11-23\n\n- new\n", True),
        ("# C\n\n## 1.2.3 - 2026-11-23\n", True),
        ("# C\n", True),
    ],
)
def test_the_first_section_with_content_is_the_versions_and_has_a_date(changelog, refused):
    assert bool(list(undated(changelog, "1.2.3"))) == refused


def test_an_empty_or_wrong_setting_of_the_project_is_refused(tmp_path):
    file = tmp_path / "project.toml"
    file.write_text(FILLED)
    assert not list(unfilled(file))
    file.write_text(FILLED.replace('"https://docs.example.com/vgpu"', '""'))
    assert list(unfilled(file)) == ["deploy/project.toml: site: empty; the publisher fills them in"]
    file.write_text(FILLED.replace("https://docs", "http://docs"))
    (reason,) = unfilled(file)
    assert "site" in reason


# ---------------------------------------------------------------- signatures


@pytest.fixture
def sums(tmp_path):
    """A file to sign."""
    file = tmp_path / "SHA256SUMS"
    file.write_text("00  a\n")
    return file


def test_without_keys_nothing_is_signed_and_one_line_for_each_signer_reports_it(sums):
    assert list(sign(sums, {})) == [
        "not signed by cosign: COSIGN_KEY is not set",
        "not signed by gpg: GPG_KEY is not set",
    ]
    assert list(sums.parent.iterdir()) == [sums]


def test_gpg_signs_with_the_key_that_is_named(sums, monkeypatch):
    gpg = required_tool("gpg", "gpg")
    home = sums.parent / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    agent = ["gpgconf", "--kill", "all"]
    try:
        key = ["--quick-gen-key", "release@example.com", "ed25519", "sign", "never"]
        subprocess.run([gpg, "--batch", "--passphrase", "", *key], check=True, capture_output=True)
        _, line = sign(sums, {"GPG_KEY": "release@example.com"})
        assert line == "signed by gpg: SHA256SUMS.asc"
        verify = [gpg, "--verify", sums.with_name("SHA256SUMS.asc"), sums]
        subprocess.run(verify, check=True, capture_output=True)
        sums.write_text("11  a\n")
        assert subprocess.run(verify, check=False, capture_output=True).returncode
        with pytest.raises(ReleaseError, match="gpg failed"):
            list(sign(sums, {"GPG_KEY": "nobody@example.com"}))
    finally:
        subprocess.run(agent, check=False)


def test_cosign_is_called_with_its_key_and_a_missing_program_is_one_line(sums, monkeypatch):
    monkeypatch.setenv("PATH", str(sums.parent))
    with pytest.raises(ReleaseError, match="cosign is not installed"):
        list(sign(sums, {"COSIGN_KEY": "cosign.key"}))
    script = Path(sums.parent, "cosign")
    script.write_text('#!/bin/sh\necho "$@" > "$0.args"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sums.parent}:/usr/bin:/bin")
    line, _ = sign(sums, {"COSIGN_KEY": "cosign.key"})
    assert line == "signed by cosign: SHA256SUMS.cosign.bundle"
    assert script.with_suffix(".args").read_text() == (
        f"sign-blob --yes --key cosign.key --bundle {sums}.cosign.bundle {sums}\n"
    )
