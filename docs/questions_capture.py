"""Writes docs/explain.svg, docs/fit.svg and docs/doctor.svg: what they answer in the demo.

    python docs/questions_capture.py

The simulated cluster is that of `vgpu demo`, after the repair and the placements.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import click
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from simulator.apiserver import ApiServer  # noqa: E402
from simulator.cluster import SimulatedCluster  # noqa: E402
from simulator.demo_cluster import demo_cluster  # noqa: E402
from vgpucli.demo.walkthrough import repair, schedule  # noqa: E402
from vgpucli.doctor import command as doctor  # noqa: E402
from vgpucli.explain import command as explain  # noqa: E402
from vgpucli.fit import command as fit  # noqa: E402

COLUMNS = 100
TERMINAL = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}

PICTURES = {
    "explain.svg": (explain.command, "explain", ["pod", "training/train-2"]),
    "fit.svg": (
        fit.command,
        "fit",
        ["--pod", "training/train-2", "--pods", "1", "--defragment"],
    ),
    "doctor.svg": (doctor.command, "doctor", []),
}


def printed(command: click.Command, words: list[str]) -> str:
    """What the command prints."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.suppress(click.exceptions.Exit),
    ):
        command.main(words, standalone_mode=False)
    return output.getvalue()


def draw(picture: Path, title: str, text: str) -> None:
    """Draw a terminal with the text."""
    with Path("/dev/null").open("w") as nowhere:
        console = Console(
            file=nowhere, record=True, width=COLUMNS, force_terminal=True, highlight=False
        )
        console.print(Text.from_ansi(text.rstrip()))
        # Fonts from elsewhere would not be loaded inside of a page; any monospaced one will do.
        template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        name = picture.stem
        console.save_svg(str(picture), title=title, code_format=template, unique_id=name)


def main() -> None:
    """Draw all pictures."""
    start = time.time()
    simulated = SimulatedCluster(demo_cluster(start), start)
    with tempfile.TemporaryDirectory() as folder, ApiServer(simulated.store) as api:
        kubeconfig = Path(folder, "kubeconfig")
        kubeconfig.write_text(api.kubeconfig())
        with contextlib.redirect_stdout(io.StringIO()):
            repair(str(kubeconfig))  # it sets KUBECONFIG and the units of memory
            schedule(str(kubeconfig), simulated.store)
        os.environ.update(TERMINAL)
        for name, (command, word, words) in PICTURES.items():
            title = " ".join(["vgpu", word, *words])
            draw(HERE / name, title, printed(command, words))


if __name__ == "__main__":
    main()
