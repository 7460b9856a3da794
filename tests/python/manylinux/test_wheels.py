"""The wheels in dist/, as `make wheel` builds them: their content, and that they work.

The wheel for x86-64 is tested in an environment without a compiler, the library of the one for
aarch64 under qemu.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import ziglang
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).parents[3]
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
BINDINGS = ("horoscale/_core/_binding.abi3.so", "horoscale/_core/_in_flight.abi3.so")
LIBRARIES = (
    *BINDINGS,
    "horoscale/_core/lib/libhoroscale.so",
    "horoscale/tensorflow/libhoroscale_tensorflow.so",
    "horoscale/keras/libhoroscale_xla.so",
    "horoscale/mxnet/libhoroscale_mxnet.so",
)
# Debian's package libc6-arm64-cross installs the C library of aarch64 there.
ARM64_ROOT = Path("/usr/aarch64-linux-gnu")
SECONDS = 200
# Downloads and installs an environment with torch.
pytestmark = pytest.mark.timeout(2 * SECONDS)


def run(*command: str | Path, **options: object) -> str:
    result = subprocess.run(  # type: ignore[call-overload]
        command, capture_output=True, text=True, timeout=SECONDS, check=False, **options
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def wheel_for(machine: str) -> Path:
    if machine not in os.environ.get("WHEELS", " ".join(MACHINES)).split():
        pytest.skip(f"WHEELS names no {machine}")
    found = sorted((ROOT / "dist").glob(f"horoscale-*-cp310-abi3-manylinux_2_28_{machine}.whl"))
    assert found, f"no wheel for {machine} in dist/: make wheel builds it"
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module", params=MACHINES)
def unpacked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    with zipfile.ZipFile(wheel_for(request.param)) as archive:
        archive.extractall(folder)
    return request.param, folder


def elf(path: Path) -> ELFFile:
    return ELFFile(io.BytesIO(path.read_bytes()))


def dynamic(path: Path) -> DynamicSection:
    return elf(path).get_section_by_name(".dynamic")


def glibc_versions(path: Path) -> set[tuple[int, ...]]:
    """The versions of the C library's functions that a library requires."""
    section = elf(path).get_section_by_name(".gnu.version_r")
    names = [entry.name for _, entries in section.iter_versions() for entry in entries]
    assert all(name.startswith("GLIBC_") for name in names), names
    return {tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in names}


def symbols(path: Path, defined: bool) -> set[str]:
    table = elf(path).get_section_by_name(".dynsym")
    return {
        symbol.name
        for symbol in table.iter_symbols()
        if symbol.name and (symbol["st_shndx"] != "SHN_UNDEF") == defined
    }


def test_libraries(unpacked: tuple[str, Path]) -> None:
    """All libraries exist for the machine, and depend only on the C library and each other."""
    machine, folder = unpacked
    for name in LIBRARIES:
        assert elf(folder / name).header.e_machine == MACHINES[machine], name
        needed = {tag.needed for tag in dynamic(folder / name).iter_tags("DT_NEEDED")}
        assert all(
            re.fullmatch(
                r"lib(c|m|dl|rt|pthread)\.so\.\d+|ld-linux-.*|libhoroscale\.so"
                r"|libtensorflow_framework\.so\.2",
                one,
            )
            for one in needed
        ), f"{name} needs {needed}"
        assert max(glibc_versions(folder / name)) <= (2, 28), name


def test_name_and_contents(unpacked: tuple[str, Path]) -> None:
    """The tag inside matches the name; all compiled files are the expected ones."""
    machine, folder = unpacked
    (information,) = folder.glob("horoscale-*.dist-info")
    tags = re.findall(r"^Tag: (.*)$", (information / "WHEEL").read_text(), re.MULTILINE)
    assert tags == [f"cp310-abi3-manylinux_2_28_{machine}"]
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.so*")}
    assert found == set(LIBRARIES)
    for name in (
        "horoscale/py.typed",
        "horoscale/_core/include/horoscale/horoscale.h",
        "horoscale/compat/bin/horovodrun",
        "horoscale/watch/page/index.html",
        "horoscale/watch/page/page.js",
        "horoscale/tensorflow/native/kernel.cc",
        f"{information.name}/licenses/LICENSE",
    ):
        assert (folder / name).is_file(), name
    assert "horoscalerun = " in (information / "entry_points.txt").read_text()


def test_exports(unpacked: tuple[str, Path]) -> None:
    """It does not conflict with another C++ library of the process, such as torch's."""
    _, folder = unpacked
    for name in BINDINGS:
        module = Path(name).name.partition(".")[0]
        assert symbols(folder / name, defined=True) == {f"PyInit_{module}"}
    for name in LIBRARIES[len(BINDINGS) :]:
        found = symbols(folder / name, defined=True)
        assert any(one.startswith(("hs_", "horoscale_")) for one in found), name
        assert {one for one in found if not one.startswith(("hs_", "horoscale_"))} == set(), name


def test_both_bindings_use_the_same_of_python(tmp_path: Path) -> None:
    """The one for aarch64 is compiled with this machine's Python headers."""
    used = []
    for machine in MACHINES:
        with zipfile.ZipFile(wheel_for(machine)) as archive:
            binding = Path(archive.extract(BINDINGS[0], tmp_path / machine))
        used.append(
            {one for one in symbols(binding, defined=False) if one.startswith(("Py", "_Py"))}
        )
    assert used[0] == used[1]
    assert used[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A virtual environment with the wheel and torch, and variables with only its PATH."""
    venv = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", venv)
    variables = {key: value for key, value in os.environ.items() if not key.startswith("HOROSCALE")}
    variables["PATH"] = str(venv / "bin")
    run(
        *(venv / "bin" / "python", "-m", "pip", "install", "-q", "--only-binary", ":all:"),
        *(f"{wheel_for('x86_64')}[torch]", "torch==2.13.0"),  # like the demo: the small build
        env=variables,
    )
    return venv, variables


def test_readme_without_a_compiler(
    environment: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    venv, variables = environment
    assert not any(shutil.which(one, path=variables["PATH"]) for one in ("cc", "c++", "gcc", "g++"))
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    output = run(
        *(venv / "bin" / "horoscalerun", "-np", "2", venv / "bin" / "python", "example.py"),
        cwd=tmp_path,
        env=variables,
    )
    assert sorted(re.findall(r"rank ([01]) of 2: loss \d", output)) == ["0", "1"], output


def test_aarch64_under_qemu(environment: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """Two ranks of a C program, started by this machine's launcher."""
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None or not (ARM64_ROOT / "lib").exists():
        assert "CI" not in os.environ, "qemu-user-static and libc6-arm64-cross are not installed"
        pytest.skip("needs Debian's qemu-user-static and libc6-arm64-cross")
    venv, variables = environment
    with zipfile.ZipFile(wheel_for("aarch64")) as archive:
        archive.extractall(tmp_path)
    core = tmp_path / "horoscale" / "_core"
    program = tmp_path / "c_allreduce"
    run(
        *(Path(ziglang.__file__).with_name("zig"), "cc", "-target", "aarch64-linux-gnu.2.28"),
        *(ROOT / "examples" / "c_allreduce.c", "-o", program, f"-I{core / 'include'}"),
        *(f"-L{core / 'lib'}", "-lhoroscale", f"-Wl,-rpath,{core / 'lib'}"),
    )
    output = run(
        *(venv / "bin" / "horoscalerun", "-np", "2", qemu, "-L", ARM64_ROOT, program),
        cwd=tmp_path,
        env=variables,
    )
    for rank in range(2):
        assert f"rank {rank} of 2: the sum is 3" in output
