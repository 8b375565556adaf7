"""The command: asks for a driver, runs the checks, writes the results, and ends everything."""

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from deploy.gpu_kit import report
from deploy.gpu_kit.answers import DriverAnswers
from deploy.gpu_kit.checks import CHECKS, Check
from deploy.gpu_kit.containers import Cgroups, cgroups_of_this_machine
from deploy.gpu_kit.deadline import (
    Deadline,
    Interrupted,
    TimeUp,
    signals_interrupt,
    time_limit,
)
from deploy.gpu_kit.kit import FULL, QUICK, Kit
from deploy.gpu_kit.processes import KitError, Processes, module
from deploy.gpu_kit.result import (
    STATUS_NO_DRIVER,
    Result,
    failed,
    not_run,
    status,
)
from vgpu import __version__

RUN_SECONDS: Final = 320.0
"""Maximum time until the checks have ended, in seconds: a run ends within six minutes, with its
wheels unpacked before and its files written afterwards."""

FIRST_SECONDS: Final = 60.0
"""Maximum time for the driver's first answer, in seconds: it may have to start."""

STATUS_INTERRUPTED: Final = 130


def run_checks(
    checks: Iterable[Check], kit: Kit, deadline: Deadline, results: list[Result]
) -> None:
    """Run the table; what is found is added to ``results`` at once. Raises Interrupted."""
    for check in checks:
        limit, begun = min(check.seconds, deadline.left()), time.monotonic()
        if not limit:
            results.append(not_run(check.name, "the time of the run was over"))
            continue
        try:
            with time_limit(limit):
                results.extend(check.run(kit))  # each as it comes: a late check keeps them
        except TimeUp:
            results.append(failed(check.name, f"it did not end in {limit:.0f} s"))
        except (KitError, OSError, ValueError, subprocess.SubprocessError) as error:
            results.append(failed(check.name, str(error)))
        except Exception as error:  # noqa: BLE001  # a defect of a check costs that check only
            results.append(failed(check.name, f"unexpected error: {error!r}"))
        finally:
            kit.processes.end_all()
            kit.facts.setdefault("seconds", {})[check.name] = round(time.monotonic() - begun, 1)


def first_answers(processes: Processes, log: Path) -> tuple[DriverAnswers | None, str]:
    """What the driver answers; or None, and why in one line."""
    program = module("deploy.gpu_kit.driver_answers")
    try:
        printed = processes.output(program, log, seconds=FIRST_SECONDS)
    except KitError as error:
        return None, str(error).partition(": ")[2] or str(error)
    answers = msgspec.json.decode(printed, type=DriverAnswers)
    return (answers, "") if answers.gpus else (None, "the driver has no GPU")


def machine_names(answers: DriverAnswers) -> dict[str, str]:
    """Names of this machine, with what stands for them in the results."""
    host = socket.gethostname()
    names = {} if host.isdecimal() else {host: "host"}  # a number is a value elsewhere
    for gpu in answers.gpus:
        if serial := gpu.info.get("serial"):
            names[serial] = f"165022300{gpu.index:04d}"
    return {name: stand_in for name, stand_in in names.items() if len(name) > 1}


def _facts(kit: Kit) -> dict[str, Any]:
    has = ("nvidia-smi", "nvidia-ctk", "nvcc", "unshare", "setpriv")
    return {
        "cgroups": kit.cgroups.value,
        "kernel": platform.release(),
        "root": os.geteuid() == 0,
        "programs": [name for name in has if shutil.which(name)],
    }


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gpu-results"),
    show_default=True,
    envvar="OUT",
    help="Folder of the results.",
)
@click.option("--quick", is_flag=True, help="Short durations: figures have no verdict.")
@click.option(
    "--cgroups",
    type=click.Choice(["auto", *(each.value for each in Cgroups)]),
    default="auto",
    show_default=True,
    help="How processes become those of containers: by the kernel's cgroups, or in a simulated"
    " procfs.",
)
@click.option(
    "--fake-library",
    type=click.Path(path_type=Path, exists=True),
    envvar="FAKE_NVML",
    help="The fake driver's library, to compare it with the real one.",
)
@click.option(
    "--hami-core",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    envvar="HAMI_CORE",
    help="HAMi-core's source.",
)
@click.option(
    "--driver-proc",
    type=click.Path(path_type=Path),
    default=Path("/proc/driver/nvidia"),
    show_default=True,
    help="The driver's folder of procfs.",
)
def main(
    out: Path,
    *,
    quick: bool,
    cgroups: str,
    fake_library: Path | None,
    hami_core: Path | None,
    driver_proc: Path,
) -> None:
    """Check vgpu on this machine's GPU.

    The status is 0 if nothing failed, 1 if something did, 3 without a driver.
    """
    started, deadline = time.monotonic(), Deadline(RUN_SECONDS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-kit-")))
        folder.chmod(0o755)  # a profile's exporter is not root
        processes, log = Processes(), folder / report.LOG
        log.touch()
        stack.callback(processes.end_all)
        stack.enter_context(signals_interrupt())
        results: list[Result] = []
        code = None
        try:
            answers, why = first_answers(processes, log)
            if answers is None:
                click.echo(f"no GPU to test: {why}", err=True)
                sys.exit(STATUS_NO_DRIVER)
            kit = Kit(
                pace=QUICK if quick else FULL,
                answers=answers,
                cgroups=cgroups_of_this_machine() if cgroups == "auto" else Cgroups(cgroups),
                driver_proc=driver_proc,
                fake_library=fake_library,
                hami_core=hami_core,
                folder=folder,
                log=log,
                processes=processes,
            )
            kit.facts.update(_facts(kit))
            run_checks(CHECKS, kit, deadline, results)
        except Interrupted:
            processes.end_all()
            click.echo("interrupted", err=True)
            code = STATUS_INTERRUPTED
            if not results:
                sys.exit(code)
        found = report.Report(
            model=kit.gpu.info.get("name", ""),
            driver=kit.answers.driver.get("driver_version", ""),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
            version=__version__,
            python=platform.python_version(),
            quick=quick,
            complete=code is None,
            seconds=round(time.monotonic() - started, 1),
            status=status(results) if code is None else code,
            facts=kit.facts,
            results=tuple(results),
        )
        texts = report.files(found, kit.kept, log.read_text(errors="replace"))
        report.write(out, texts, machine_names(kit.answers))
        click.echo(report.summary(found), nl=False)
        click.echo(f"results: {out} (keep them as {report.folder_name(found)})")
        sys.exit(found.status)


if __name__ == "__main__":
    main()
