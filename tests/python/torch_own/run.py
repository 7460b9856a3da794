"""PyTorch's own tests of torch.distributed, on horoscale: those that accept any backend.

    python tests/python/torch_own/run.py --size 2             # all of them, on 2 ranks
    python tests/python/torch_own/run.py --size 3 -k gather   # some
    python tests/python/torch_own/run.py --size 2 --backend gloo

They are those of torch.testing._internal.distributed.distributed_test, which is part of PyTorch's
wheel; it also needs expecttest and hypothesis. Their results are compared with outcomes.json, which
has one for each number of ranks, and a reason if a test doesn't pass. --record writes it. The exit
status tells whether all results were as expected.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

OUTCOMES = Path(__file__).with_name("outcomes.json")
MODULE = "torch.testing._internal.distributed.distributed_test"
TEST_SECONDS = 120


def main() -> int:
    """Run the command line; return the exit status."""
    options = parse()
    folder = tempfile.TemporaryDirectory()
    os.environ |= {
        "INIT_METHOD": f"file://{folder.name}/again",  # for a test that does a rendezvous twice
        "WORLD_SIZE": str(options.size),
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_SECONDS),
    }
    suite = tests(options.backend)
    names = [name for name in sorted(suite) if re.search(options.select, name)]
    names = names[options.part - 1 :: options.parts]
    ends = {}
    for name in names:
        begin = time.monotonic()
        ends[name], detail = run(suite[name](name))
        print(f"{name}: {ends[name]} ({time.monotonic() - begin:.0f} s)", flush=True)
        if ends[name] == "fails":
            print(detail, flush=True)
    if options.record:
        record(ends, options.size)
    return compare(ends, options.size)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2, help="how many ranks")
    parser.add_argument("--backend", default="horoscale", help="horoscale, or gloo")
    parser.add_argument("-k", dest="select", default="", help="regular expression of names")
    parser.add_argument("--part", type=int, default=1, help="which of --parts parts")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="write what is found")
    return parser.parse_args()


def tests(backend: str) -> dict[str, type[unittest.TestCase]]:
    """Return the class of each test by its name.

    Some tests require certain backends, by name. Those that require Gloo or MPI, which also support
    CPU tensors, are told that they have one of these.
    """
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import DistTestCases

    dist.is_mpi_available = lambda: True  # so that tests for it are defined
    kinds = []
    for kind in (backend, "gloo", "mpi"):
        for feature in ("ddp", "subgroup", "plugin"):  # "plugin": not part of PyTorch
            DistTestCases.backend_feature[feature].add(kind)
        kinds.append(define(kind, backend))
    os.environ["BACKEND"] = backend
    names = unittest.TestLoader().getTestCaseNames(kinds[0])
    return {
        name: next((kind for kind in kinds if asks_for(kind, name)), kinds[0]) for name in names
    }


def define(asked: str, backend: str) -> type[unittest.TestCase]:
    """Return PyTorch's tests, defined for the backend `asked` and run on `backend`."""
    import torch.distributed as dist
    import torch.multiprocessing

    os.environ["BACKEND"] = asked
    sys.modules.pop(MODULE, None)
    module = importlib.import_module(MODULE)
    init_process_group = dist.init_process_group

    def init(*args: Any, **kwargs: Any) -> None:
        init_process_group(*args, **kwargs | {"backend": backend})

    class Tests(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            sys.modules[MODULE] = module  # pickle looks up classes there
            dist.init_process_group = init  # whatever backend the test knows of
            # Forked processes have imported PyTorch.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Tests


def asks_for(kind: type[unittest.TestCase], name: str) -> bool:
    """Tell whether a test was defined to run."""
    return not getattr(getattr(kind, name), "__unittest_skip__", False)


def run(test: unittest.TestCase) -> tuple[str, str]:
    """Run a test; return its result, "passes", "fails", or "skips: …", and its output."""
    result = unittest.TestResult()
    test.run(result)
    if result.skipped:
        return f"skips: {reason(result.skipped[0][1])}", ""
    broken = result.errors + result.failures
    return ("fails", broken[0][1]) if broken else ("passes", "")


def reason(told: str) -> str:
    """Return PyTorch's reason to skip a test, in words that are the same each time."""
    if re.search("https?://", told):
        return "PyTorch has disabled it"
    return re.sub(r"{(.*)}", lambda names: ", ".join(sorted(names[1].split(", "))), told)


def known() -> dict[str, dict[str, str]]:
    """Return the known results of tests, by name and number of ranks."""
    return json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}


def compare(ends: dict[str, str], size: int) -> int:
    """Print unexpected results; return the exit status."""
    outcomes = known()
    expected = {name: outcomes.get(name, {}).get(str(size), "unknown") for name in ends}
    # For failures the file contains the reason.
    new = [name for name, end in ends.items() if expected[name] != end and
           not (end == "fails" and expected[name].startswith("fails: "))]  # fmt: skip
    for name in new:
        print(f"{name} {ends[name]}, and was expected: {expected[name]}")
    kinds = [end.split(":")[0] for end in ends.values()]
    print({kind: kinds.count(kind) for kind in sorted(set(kinds))}, f"{len(new)} not as expected")
    return 1 if new else 0


def record(ends: dict[str, str], size: int) -> None:
    """Write the results; known failures keep their reasons, new ones need one."""
    outcomes = known()
    for name, end in ends.items():
        before = outcomes.setdefault(name, {}).get(str(size), "")
        if not (end == "fails" and before.startswith("fails: ")):
            outcomes[name][str(size)] = end
    lines = (f"{json.dumps(name)}: {json.dumps(outcomes[name])}" for name in sorted(outcomes))
    OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
