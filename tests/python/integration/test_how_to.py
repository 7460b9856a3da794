"""Each code block on the documentation's how-to pages does what the page says.

A Python block is the file that its first line names. In a "console" block, lines after "$" are
commands, which run in order in the folder of these files. Each line below a command must be in its
output; "…" matches anything.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.examples import ROOT, SECONDS

PAGES = sorted((ROOT / "docs" / "how_to").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if page.stem == "frameworks" and not find_spec("keras"):
        pytest.skip("needs Keras 3")
    if page.stem == "track_training" and not find_spec("tensorboard"):
        pytest.skip("needs TensorBoard")
    blocks = BLOCK.findall(page.read_text())
    assert any(language == "console" for language, _ in blocks)
    for language, text in blocks:
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, f"the block does not begin with its file's name: {text[:60]}"
            (tmp_path / name[1]).write_text(text)
        elif language == "console":
            run_console(text, tmp_path)
        else:
            assert language == "{toctree}", f"nothing runs a block in {language}"


def run_console(text: str, folder: Path) -> None:
    """Run the commands of a block, and check for the output that the page shows."""
    for command, *shown in (part.splitlines() for part in re.split(r"^\$ ", text, flags=re.M)[1:]):
        output = run_shell(command, folder)
        for line in shown:
            pattern = ".*".join(map(re.escape, line.split("…")))
            assert re.search(f"^{pattern}$", output, re.MULTILINE), f"{line}\nis not in\n{output}"


def free_port() -> int:
    """A free loopback port; the page's job uses it a moment later."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def run_shell(command: str, folder: Path) -> str:
    """Return a command's output, including errors; it must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "PORT": str(free_port()), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout
