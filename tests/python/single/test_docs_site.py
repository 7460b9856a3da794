"""How the documentation site renders docstrings, which are written for terminals."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def docstrings() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "docstrings.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_and_tables_are_literal_and_sections_are_left_to_napoleon(
    docstrings: ModuleType,
) -> None:
    lines = [
        "Do something.",
        "",
        "    import horoscale",
        "    horoscale.run(f)",
        "",
        "Names           are aligned by hand,",
        "                over lines.",
        "- a list",
        "  goes on",
        "",
        "Args:",
        "    x: what it is,",
        "        said at length.",
        "",
        "Then prose.",
    ]
    assert list(docstrings.laid_out(lines)) == [
        *("Do something.", ""),
        *("::", "", "        import horoscale", "        horoscale.run(f)", ""),
        *("::", "", "    Names           are aligned by hand,"),
        *("                    over lines.", "    - a list", "      goes on", ""),
        *("Args:", "    x: what it is,", "        said at length.", ""),
        *("Then prose.", ""),
    ]


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("horoscale._core.errors", "horoscale.common"),
        ("horoscale.runner.api", "horoscale"),
        ("horoscale.torch.elastic.sampler", "horoscale.torch.elastic"),
        ("horoscale.torch.optimizer", "horoscale.torch"),
        ("torch.optim", ""),
    ],
)
def test_a_name_is_shown_by_the_package_that_defines_it(
    module: str, page: str, docstrings: ModuleType
) -> None:
    assert docstrings._page_of(module) == page


def test_every_page_of_the_reference_is_known(docstrings: ModuleType) -> None:
    pages = {page.stem for page in (DOCS / "reference").glob("*.md")}
    assert pages == set(docstrings.PAGES)
    index = (DOCS / "index.md").read_text()
    listed = {line.strip() for line in index.splitlines()}
    missing = {
        page.relative_to(DOCS).with_suffix("").as_posix()
        for folder in (".", "how_to", "reference")
        for page in (DOCS / folder).glob("*.md")
    } - listed
    assert missing == {"index"}
