"""Builds the wheels that are published: for x86-64 and aarch64, and for any Linux with glibc 2.28.

    python cmake/build_wheels.py [--output dist] [--work build/manylinux] [machine…]

Each wheel is compiled from a source distribution by zig's C++ compiler, which has the headers and
libraries of every glibc and links its own C++ library statically, so that neither the processor nor
the distribution of the machine that builds matters. auditwheel then checks that a wheel needs
nothing that is newer. `make wheel` sets up what this needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import ziglang

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)
# Loaded by whoever loads the kernel of TensorFlow's ops.
NOT_OURS = {"libtensorflow_framework.so.2"}


def main(arguments: list[str]) -> None:
    """Build a source distribution, and a wheel of it for each machine."""
    parser = argparse.ArgumentParser(description="Build the wheels that are published.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "manylinux")
    parser.add_argument("machines", nargs="*", metavar="machine", help=" or ".join(MACHINES))
    options = parser.parse_args(arguments)
    unknown = [machine for machine in options.machines if machine not in MACHINES]
    if unknown:
        parser.error(f"no wheels are built for {', '.join(unknown)}")
    # cmake and ninja are installed beside this Python.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    work = options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    options.output.mkdir(parents=True, exist_ok=True)
    sources = unpacked_distribution(work, options.output)
    for machine in options.machines or MACHINES:
        print(f"== wheel for {machine}: {platform_tag(machine)}", flush=True)
        wheel = build(sources, machine, work / machine)
        check(wheel, machine)
        shutil.copy(wheel, options.output)


def unpacked_distribution(work: Path, output: Path) -> Path:
    """Return the folder of what a source distribution holds: a file that it lacks is not found."""
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", work, ROOT)
    (archive,) = work.glob("*.tar.gz")
    shutil.copy(archive, output)
    with tarfile.open(archive) as opened:
        opened.extractall(work, filter="data")
    return work / archive.name.removesuffix(".tar.gz")


def build(sources: Path, machine: str, work: Path) -> Path:
    """Return a wheel of the sources for this machine."""
    shutil.copytree(sources, work / "sources")
    tools = compilers(machine, work / "bin")
    headers = python_headers(work / "include")
    environment = os.environ | {
        **tools,
        # zig's cc describes everything to debuggers unless told otherwise, for a third of the time.
        "CFLAGS": f"-O2 -g0 -I{headers}",
        "CXXFLAGS": "-g0",
        "LDSHARED": f"{tools['CC']} -shared",
        "WHEEL_MACHINE": machine,
        "CMAKE_ARGS": f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake/zig.cmake'} "
        "-DCMAKE_SHARED_LINKER_FLAGS=-s",
    }
    environment.pop("HOROSCALE_BUILD_SIM", None)  # which is for one version of Python
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", work),
        f"-C--build-option=--plat-name={platform_tag(machine)}",
        work / "sources",
        env=environment,
    )
    (wheel,) = work.glob("*.whl")
    return wheel


def compilers(machine: str, folder: Path) -> dict[str, str]:
    """Write programs that are zig's tools for this machine; return them as variables."""
    folder.mkdir(parents=True)
    zig = Path(ziglang.__file__).with_name("zig")
    target = f"-target {machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    commands = {
        "CC": f"cc {target}",
        "CXX": f"c++ {target}",
        "AR": "ar",
        "RANLIB": "ranlib",
    }
    for name, command in commands.items():
        path = folder / name.lower()
        path.write_text(f'#!/bin/sh\nexec "{zig}" {command} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    return {name: str(folder / name.lower()) for name in commands}


def python_headers(folder: Path) -> Path:
    """Copy this Python's headers for the binding, which uses the limited API only.

    That is the same on all 64-bit machines. Debian's pyconfig.h includes one of several by the
    processor that is compiled for; here it is always this machine's.
    """
    shutil.copytree(sysconfig.get_paths()["include"], folder)
    config = Path(sysconfig.get_config_h_filename())
    for candidate in (
        config.parent.parent / (sysconfig.get_config_var("MULTIARCH") or "") / config.parent.name,
        config.parent,
    ):
        if (candidate / "pyconfig.h").exists():
            shutil.copy(candidate / "pyconfig.h", folder / "pyconfig.h")
            break
    return folder


def check(wheel: Path, machine: str) -> None:
    """End the program unless auditwheel finds that the wheel is what its tag says.

    `auditwheel repair` would rename wheels for the machine that it runs on only; `auditwheel show`
    reads any.
    """
    command = (sys.executable, "-m", "auditwheel", "show", "--json", str(wheel))
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output)
    print(f"auditwheel: versions of symbols allow {found['sym_tag']}; {found['external_libs']}")
    problems = found["policy_upgrades"].get(platform_tag(machine), {})
    others = set(problems.pop("libs_to_eliminate", ())) - NOT_OURS
    newest = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{machine}", found["sym_tag"])
    too_new = newest is None or tuple(map(int, newest.groups())) > GLIBC
    if others or problems or too_new or found["unsupported_isa"]:
        sys.exit(f"{wheel.name} is not what its name says: {output}")


def platform_tag(machine: str) -> str:
    """Return what wheels for this machine have at the end of their names."""
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command, and end with its status if it fails."""
    outcome = subprocess.run([str(part) for part in command], env=env, check=False)
    if outcome.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with {outcome.returncode}")


if __name__ == "__main__":
    main(sys.argv[1:])
