"""Draw the README's picture: the real output of `holdfast demo`, as an SVG of a terminal. Run by `make docs`."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
WIDTH = 100


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holdfast", "demo"]
        shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    console = Console(record=True, width=WIDTH, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text("$ holdfast demo", style="bold"))
    for line in (shown.stdout + shown.stderr).replace(folder, "demo").splitlines():
        command_line = line.lstrip().startswith(("$", "holdfast "))
        console.print(Text(line, style="bold" if command_line else ""), soft_wrap=False)
    svg = console.export_svg(title="holdfast demo", unique_id="demo")
    # No fonts from the network: the picture must look the same offline.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg)


if __name__ == "__main__":
    main()
