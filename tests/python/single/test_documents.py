"""The documents agree with the code, where that can be checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from horoscale._core import config_variables

ROOT = Path(__file__).parents[3]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_configuration_is_what_the_library_says() -> None:
    program = ROOT / "docs" / "generate_configuration.py"
    result = subprocess.run(
        [sys.executable, program, "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_every_variable_is_described() -> None:
    for variable in config_variables():
        assert variable["type"], variable
        assert variable["doc"].endswith("."), variable


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_that_are_named_exist(document: Path) -> None:
    """Paths in the repository, as `code`, that start with one of its folders.

    `horoscale/operations` and the like are names of metrics.
    """
    folders = "cpp|horoscale|tests|examples|benchmarks|docs|docker|cmake"
    paths = re.findall(rf"`((?:{folders})/[\w-]*[./][\w./-]*)`", document.read_text())
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing, f"{document.name} names what isn't there"


def test_the_page_of_metrics_has_every_field() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    *tables, _ = text.split("\n## ")[1:]  # the last one is of Prometheus' series
    own, of_a_set, of_late_ranks, of_its_progress, of_steps = (
        re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in tables
    )
    program = "import json, horoscale.numpy as h; h.init(); print(json.dumps(h.metrics()))"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    metrics = json.loads(ended.stdout)
    assert sorted(own) == sorted(metrics)
    assert sorted(of_a_set) == sorted(metrics["process_sets"]["0"])
    assert of_late_ranks == ["operations", "seconds"]  # with one rank nobody is late
    assert sorted(of_its_progress) == sorted(metrics["progress"]["0"])
    assert sorted(of_steps) == sorted(metrics["steps"])


def test_tests_that_are_named_exist() -> None:
    """A document refers to a test as `file::test`."""
    named = [
        pair
        for document in DOCUMENTS
        for pair in re.findall(r"`(tests/[\w./-]+)::(\w+)`", document.read_text())
    ]
    assert named
    missing = [
        (file, test)
        for file, test in named
        if not re.search(rf"\b{test}\b", (ROOT / file).read_text())
    ]
    assert not missing


def test_readme_names_every_make_target_it_uses() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        used = set(re.findall(r"\bmake ([a-z-]+)`", (ROOT / name).read_text()))
        assert used <= targets, f"{name}: {used - targets}"


def test_example_of_the_readme_is_short_and_valid() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert block.count("\n") <= 15
        compile(block, "README.md", "exec")
