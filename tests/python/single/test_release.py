"""What `make release` rejects, and how it reports the checks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import horoscale
from horoscale._core import library_version

ROOT = Path(__file__).parents[3]
CHANGELOG = """# Changelog

## Unreleased

- later

## 1.2.3 - 2026-02-28

### Added

- a thing

## 1.2.2 - 2026-01-01
"""


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A program of cmake/, whose modules import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "cmake"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "cmake" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("release_rules", monkeypatch)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch, rules: ModuleType) -> ModuleType:
    loaded("release_environments", monkeypatch)
    return loaded("release", monkeypatch)


GOOD = {"version": "1.2.3", "tags": ("v1.2.3",), "changed": (), "changelog": CHANGELOG}
SECTION = 'expected a section "## 1.2.3 - YYYY-MM-DD"'


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [], id="ready"),
        pytest.param({"tags": ("nightly", "v1.2.3", "viewed")}, [], id="other-tags"),
        pytest.param(
            {"changed": ("a", "b", "c", "d", "e")},
            ["the working tree differs from the commit: a, b, c and 2 more"],
            id="changed",
        ),
        pytest.param(
            {"tags": ("nightly",)},
            ["the commit has no tag of a version: expected v1.2.3"],
            id="no-tag",
        ),
        pytest.param(
            {"tags": ("v1.2.3", "v1.3.0")},
            ["the commit has the tag v1.3.0, and horoscale/_version.py has 1.2.3"],
            id="another-tag",
        ),
        pytest.param(
            {"version": "1.2.3.dev0"},
            [
                "horoscale/_version.py has 1.2.3.dev0: a release has 1.2.3",
                "the commit has the tag v1.2.3, and horoscale/_version.py has 1.2.3.dev0",
            ],
            id="development",
        ),
        pytest.param(
            {"changelog": "# Changelog\n\n## Unreleased\n"},
            [f"CHANGELOG.md does not have 1.2.3: {SECTION}"],
            id="no-section",
        ),
        *(
            pytest.param(
                {"changelog": CHANGELOG.replace(" - 2026-02-28", date)},
                [f"CHANGELOG.md has no date for 1.2.3: {SECTION}"],
                id=name,
            )
            for name, date in (
                ("no-date", ""),
                ("no-such-day", " - 2026-02-30"),
                ("another-form", " - 20260228"),
            )
        ),
        pytest.param(
            {"changelog": CHANGELOG.replace("### Added\n\n- a thing", "")},
            ["CHANGELOG.md has nothing below the heading of 1.2.3"],
            id="empty-section",
        ),
        pytest.param(
            {"version": "next", "tags": (), "changed": ("x",), "changelog": ""},
            [
                "the working tree differs from the commit: x",
                "horoscale/_version.py has next: a release has X.Y.Z",
                "the commit has no tag of a version: expected vX.Y.Z",
                'CHANGELOG.md does not have X.Y.Z: expected a section "## X.Y.Z - YYYY-MM-DD"',
            ],
            id="all",
        ),
    ],
)
def test_what_is_refused(
    changes: dict[str, object], expected: list[str], rules: ModuleType
) -> None:
    assert rules.problems(rules.Commit(**GOOD | changes)) == expected


def test_a_commit_that_is_refused_is_not_built(
    release: ModuleType,
    rules: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = rules.Commit(**GOOD | {"tags": ()})
    monkeypatch.setattr(release, "look", lambda: refused)
    monkeypatch.setattr(release, "OUTPUT", None)  # nothing there is modified
    assert release.main([]) == 1
    assert capsys.readouterr().err == (
        "release: the commit has no tag of a version: expected v1.2.3\n"
    )


def test_this_commit_is_read(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)

    (tmp_path / "horoscale").mkdir()
    version = tmp_path / "horoscale" / "_version.py"
    version.write_text('"""The version."""\n\n__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "a release")
    git("tag", "v1.2.3")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.look()._asdict() == GOOD
    (tmp_path / "new").touch()
    version.write_text('__version__ = "1.2.4"\n')
    assert set(release.look().changed) == {"new", "horoscale/_version.py"}
    assert release.look().version == "1.2.4"


def test_outcomes_of_tests_are_rows(release: ModuleType) -> None:
    report = """<testsuites><testsuite>
      <testcase name="test_exports[x86_64]"/>
      <testcase name="test_aarch64_under_qemu"><skipped message="needs qemu"/></testcase>
      <testcase name="test_libraries[x86_64]"><failure>no</failure></testcase>
      <testcase name="test_contents[x86_64]"><error>no</error></testcase>
    </testsuite></testsuites>"""
    rows = release.outcomes(report)
    assert release.table(rows).splitlines() == [
        "what                result",
        "exports[x86_64]     passed       tests/python/manylinux",
        "aarch64 under qemu  not checked  needs qemu",
        "libraries[x86_64]   failed       tests/python/manylinux",
        "contents[x86_64]    failed       tests/python/manylinux",
    ]
    assert [row.result for row in release.outcomes("<testsuites/>")] == ["failed"]


def test_wheels_of_other_machines_and_missing_pythons_are_named(release: ModuleType) -> None:
    machine = release.platform.machine()
    other = "aarch64" if machine == "x86_64" else "x86_64"
    of_other = Path(f"horoscale-1.2.3-cp310-abi3-manylinux_2_28_{other}.whl")
    (row,) = release._of_wheel(of_other, "1.2.3", {"3.10": Path("python3.10")})
    assert row[:] == (f"{other} wheel, Python 3.10", "not checked", f"this machine is {machine}")
    own = Path(f"horoscale-1.2.3-cp310-abi3-manylinux_2_28_{machine}.whl")
    (row,) = release._of_wheel(own, "1.2.3", {"3.11": None})
    assert row.result == "not checked"
    assert "python3.11" in row.details


def test_only_a_python_of_that_version_is_taken(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version in (own, "3.99"):
        (tmp_path / f"python{version}").symlink_to(sys.executable)
    (tmp_path / "python3.98").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.98").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    find = release.environments.find_python
    assert find(own) == tmp_path / f"python{own}"
    assert [find(version) for version in ("3.97", "3.98", "3.99")] == [None, None, None]


def test_sums_are_what_sha256sum_reads(release: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "a-1.whl"
    package.write_bytes(b"abc")
    (tmp_path / "SUMS").write_text(release.sums([package]))
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SUMS"], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr


def test_the_library_has_the_version_of_the_package() -> None:
    assert library_version() == horoscale.__version__
