"""`vgpu scheduler check-config`: the traps in a KubeSchedulerConfiguration."""

from pathlib import Path
from typing import Final

import click

from scheduler.check_config.traps import ConfigFinding, config_findings, unserved_resources
from vgpu.io.unique_keys import UniqueKeyLoader
from vgpu.io.yaml_documents import NotYamlError, yaml_document
from vgpu.model.reasons import SourceError
from vgpu.placement.unserved import CHART_RESOURCES, UNSERVED_FLAG
from vgpu.program.output import say
from vgpu.program.resource_flags import resource_flags

MOST_BYTES: Final = 1024 * 1024
"""Maximum size of the file, in bytes."""


@click.command("check-config", context_settings={"max_content_width": 100})
@resource_flags
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_context
def check_config(ctx: click.Context, /, file: Path) -> None:
    """Name the traps in FILE, a KubeSchedulerConfiguration that names this extender.

    The exit status is 1 if pods would be bound without a GPU, or if kube-scheduler would refuse the
    file for its extenders. Plugins and their arguments are not checked. The last line is the flag
    of vgpu scheduler for resources of other vendors, if FILE has some.
    """
    findings, unserved = _findings(file)
    for finding in findings:
        kind = "error" if finding.is_error else "warning"
        say(f"{finding.field}: {kind} ({finding.trap}): {finding.trap.explanation}")
    if not findings:
        say(f"{file}: no trap was found")
    if unserved:
        covered = " (the default has them)" if CHART_RESOURCES.issuperset(unserved) else ""
        say(f"resources of other vendors: {UNSERVED_FLAG}={','.join(unserved)}{covered}")
    ctx.exit(int(any(finding.is_error for finding in findings)))


def _findings(file: Path) -> tuple[list[ConfigFinding], tuple[str, ...]]:
    """The traps, and the resources that are not served. Raises click.ClickException."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise click.ClickException(f"{file}: larger than {MOST_BYTES} bytes")
    try:
        document = yaml_document(content, UniqueKeyLoader)
        path = str(file)
        return config_findings(document, path), unserved_resources(document, path)
    except NotYamlError as error:
        if error.is_duplicate_key:
            place = f"{file}, line {error.line}"
            raise click.ClickException(f"{place}: kube-scheduler refuses a key twice") from error
        raise click.ClickException(f"{file}: not YAML: {error}") from error
    except SourceError as error:
        raise click.ClickException(f"{file}: {error.detail}") from error
