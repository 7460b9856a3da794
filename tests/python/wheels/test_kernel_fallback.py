"""If the wheel's kernel doesn't work with TensorFlow, one is compiled, with a message.

Each library here is the wheel's, except for how it completes an operation.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf
from support.ranks import run_ranks

import horoscale

PACKAGE = Path(horoscale.__file__).parent
COMPLETION = "context, Take(done)"
REPLACEMENTS = {
    "as it is": COMPLETION,
    "never": "context, [] {}",
    "crash": "context, [] { __builtin_trap(); }",
}

SCRIPT = """
from pathlib import Path
import tensorflow as tf
import horoscale.tensorflow as hvd
from horoscale.tensorflow import loader
loader._LIBRARY = Path({library!r})
loader._TRIED = {tried!r}
hvd.init()
total = hvd.allreduce(tf.range(4), op=hvd.Sum)
assert total.numpy().tolist() == [0, 2, 4, 6]
print(loader._kernel.prefix)
"""
TRIED, UNTRIED = ("",), ("none",)


def library(folder: Path, completion: str) -> Path:
    for source in (PACKAGE / "tensorflow" / "native").iterdir():
        text = source.read_text(encoding="utf-8")
        if source.name == "entry_c_api.cc":
            assert COMPLETION in text
            text = text.replace(COMPLETION, completion)
        (folder / source.name).write_text(text, encoding="utf-8")
    sources = [one for one in sorted(folder.glob("*.cc")) if one.name != "entry_cxx.cc"]
    core = PACKAGE / "_core"
    result = folder / "libhoroscale_tensorflow.so"
    subprocess.run(
        [
            *("c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"),
            *(f"-I{core / 'include'}", *sources, "-o", result),
            *(f"-L{core / 'lib'}", "-lhoroscale", f"-Wl,-rpath,{core / 'lib'}"),
            *tf.sysconfig.get_link_flags(),
        ],
        check=True,
    )
    return result


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("completion", "tried", "prefix"),
    [
        ("as it is", TRIED, "Horoscale"),
        ("as it is", UNTRIED, "Horoscale"),
        ("never", TRIED, "HoroscaleCompiled"),
        ("crash", UNTRIED, "HoroscaleCompiled"),
    ],
)
def test_fallback(completion: str, tried: tuple[str, ...], prefix: str, tmp_path: Path) -> None:
    script = SCRIPT.format(library=str(library(tmp_path, REPLACEMENTS[completion])), tried=tried)
    for rank in run_ranks(2, script, seconds=500, XDG_CACHE_HOME=str(tmp_path / "cache")):
        assert rank.returncode == 0, rank.stdout + rank.stderr
        assert rank.stdout == f"{prefix}\n"
        warned = re.search(r"does not work with TensorFlow .*; compiling one", rank.stderr)
        assert (warned is not None) == (prefix == "HoroscaleCompiled"), rank.stderr


def test_no_compiler(tmp_path: Path) -> None:
    """The error lists what was tried."""
    script = SCRIPT.format(library=str(tmp_path / "missing.so"), tried=TRIED)
    variables = {"CXX": "false", "XDG_CACHE_HOME": str(tmp_path)}
    for rank in run_ranks(2, script, **variables):
        assert "horoscale has no kernel for TensorFlow" in rank.stderr
        assert "false failed" in rank.stderr
