"""Builds a release in dist/, and checks it: `make release`. It signs nothing and uploads nothing.

    python cmake/release.py [--rehearsal] [machine…]

The version of a release is its tag, vX.Y.Z. A commit that is not ready is refused, with a line for
each reason. What can't be checked here, such as a version of Python that is not installed, is named
in the table at the end. SHA256SUMS is written if nothing has failed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import release_environments as environments
from release_rules import Commit, problems

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "dist"
SUMS = "SHA256SUMS"


class Row(NamedTuple):
    """A line of the table."""

    what: str
    result: str  # "passed", "not checked" or "failed"
    details: str


def main(arguments: list[str]) -> int:
    """Build and check; return the status of the program."""
    parser = argparse.ArgumentParser(description="Build and check a release.")
    parser.add_argument(
        "--rehearsal", action="store_true", help="go on with a commit that can't be released"
    )
    parser.add_argument("machines", nargs="*", metavar="machine", help="by default all")
    options = parser.parse_args(arguments)
    commit = look()
    found = problems(commit)
    for problem in found:
        print(f"release: {problem}", file=sys.stderr)
    if found and not options.rehearsal:
        return 1
    for old in (*OUTPUT.glob("horoscale-*.whl"), *OUTPUT.glob("horoscale-*.tar.gz")):
        old.unlink()
    (OUTPUT / SUMS).unlink(missing_ok=True)
    builder = ROOT / "cmake" / "build_wheels.py"
    if subprocess.run([sys.executable, builder, *options.machines], check=False).returncode != 0:
        return 1
    packages = sorted((*OUTPUT.glob("*.tar.gz"), *OUTPUT.glob("*.whl")))
    rows = check(packages, commit.version)
    print(table(rows))
    if any(row.result == "failed" for row in rows):
        print("release: a check has failed", file=sys.stderr)
        return 1
    (OUTPUT / SUMS).write_text(sums(packages), encoding="utf-8")
    print(f"{'rehearsed' if found else 'built'}: {commit.version}, in {OUTPUT}, with {SUMS}")
    return 0


def look() -> Commit:
    """Return what git and the files say of this commit."""
    text = (ROOT / "horoscale" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    if found is None:
        sys.exit("release: horoscale/_version.py has no version")
    return Commit(
        version=found[1],
        tags=tuple(git("tag", "--points-at", "HEAD").split()),
        changed=tuple(line[3:] for line in git("status", "--porcelain").splitlines()),
        changelog=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    )


def git(*arguments: str) -> str:
    """Return what git prints; end the program with git's own words where it fails."""
    try:
        ended = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        sys.exit(f"release: {error}")
    if ended.returncode != 0:
        sys.exit(f"release: {ended.stderr.strip()}")
    return ended.stdout


def check(packages: list[Path], version: str) -> list[Row]:
    """Return what was checked of the packages, and what was not."""
    rows = [_checked("metadata of all files", lambda: _twine(packages))]
    rows += _contents(machine_of(one) for one in packages if one.suffix == ".whl")
    pythons = {one: environments.find_python(one) for one in environments.VERSIONS}
    for package in packages:
        if package.suffix == ".whl":
            rows += _of_wheel(package, version, pythons)
        else:
            rows.append(_of_sources(package, version, pythons))
    return rows


def _twine(packages: list[Path]) -> str:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, packages)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise environments.FailedError(ended.stdout + ended.stderr)
    return "twine check --strict"


def _contents(machines: Iterable[str]) -> list[Row]:
    """The tests of tests/python/manylinux, a row for each."""
    print("== contents of the wheels", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "python/manylinux"]
        subprocess.run(
            command,
            cwd=ROOT / "tests",
            env=os.environ | {"WHEELS": " ".join(machines)},
            check=False,
        )
        if not report.exists():
            return [Row("contents of the wheels", "failed", "pytest did not run")]
        return outcomes(report.read_text(encoding="utf-8"))


def outcomes(report: str) -> list[Row]:
    """Return a row for each test of a report in JUnit's form."""
    rows = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        name, bracket, machine = case.get("name", "").removeprefix("test_").partition("[")
        what = name.replace("_", " ") + bracket + machine
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            rows.append(Row(what, "failed", "tests/python/manylinux"))
        elif skipped is not None:
            rows.append(Row(what, "not checked", skipped.get("message", "")))
        else:
            rows.append(Row(what, "passed", "tests/python/manylinux"))
    return rows or [Row("contents of the wheels", "failed", "no test ran")]


def _of_wheel(package: Path, version: str, pythons: dict[str, Path | None]) -> list[Row]:
    rows = []
    machine = machine_of(package)
    for one, python in pythons.items():
        what = f"{machine} wheel, Python {one}"
        if machine != platform.machine():
            rows.append(Row(what, "not checked", f"this machine is {platform.machine()}"))
        elif python is None:
            rows.append(Row(what, "not checked", f"no python{one} in PATH, of pyenv or of uv"))
        else:
            rows.append(_installed(what, package, version, python, compiler=False))
    return rows


def _of_sources(package: Path, version: str, pythons: dict[str, Path | None]) -> Row:
    """The source distribution, compiled by this machine's compiler with the oldest Python."""
    name, python = next(((one, path) for one, path in pythons.items() if path), ("", None))
    what = f"source distribution, Python {name}"
    if python is None:
        return Row("source distribution", "not checked", "no Python was found")
    if not any(shutil.which(one) for one in ("c++", "g++", "clang++")):
        return Row(what, "not checked", "no C++ compiler")
    return _installed(what, package, version, python, compiler=True)


def _installed(what: str, package: Path, version: str, python: Path, *, compiler: bool) -> Row:
    def run() -> str:
        with tempfile.TemporaryDirectory(prefix="horoscale-release-") as folder:
            environments.check_installed(python, package, version, Path(folder), compiler=compiler)
        return "compiled, 2 ranks" if compiler else "installed without a compiler, 2 ranks"

    return _checked(what, run)


def _checked(what: str, run: Callable[[], str]) -> Row:
    print(f"== {what}", flush=True)
    try:
        return Row(what, "passed", run())
    except environments.FailedError as error:
        print(error, file=sys.stderr)
        return Row(what, "failed", "why is above")


def machine_of(wheel: Path) -> str:
    """Return "x86_64" for horoscale-1.2.3-cp310-abi3-manylinux_2_28_x86_64.whl."""
    return re.sub(r".*-manylinux_\d+_\d+_", "", wheel.stem)


def table(rows: list[Row]) -> str:
    """Return the rows as text, in columns."""
    lines = [Row("what", "result", ""), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "\n".join(
        f"{line.what:{widths[0]}}  {line.result:{widths[1]}}  {line.details}".rstrip()
        for line in lines
    )


def sums(packages: list[Path]) -> str:
    """Return the lines that `sha256sum --check` reads."""
    return "".join(
        f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.name}\n"
        for package in packages
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
