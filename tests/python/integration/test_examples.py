"""The examples and the benchmark do what their first lines say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import namespaces
from support.examples import EXAMPLES, ROOT, SECONDS, accuracy_of, launch, run


def test_the_readmes_example(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    output = launch(2, sys.executable, "example.py", folder=tmp_path)
    losses = re.findall(r"rank [01] of 2: loss (\S+)", output)
    assert len(losses) == 2, output
    assert all(float(loss) < 1e-3 for loss in losses), output


@pytest.mark.timeout(3 * SECONDS)
def test_digits_are_learned_equally_well_on_any_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # Three ranks can't split any of these batches evenly; test_hosts.py uses more numbers of ranks.
    arguments = ("--epochs", "6", "--global-batch", "100")
    accuracies = [
        accuracy_of(
            launch(n, sys.executable, EXAMPLES / "torch_digits.py", *arguments, folder=tmp_path)
        )
        for n in (1, 3)
    ]
    assert min(accuracies) >= 0.95
    assert max(accuracies) - min(accuracies) <= 0.01


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("options", ["--sync-every 4", "--sync-every 4 --diloco"])
def test_digits_are_learned_by_local_sgd(options: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = ("--epochs", "6", "--global-batch", "100", *options.split())
    script = EXAMPLES / "torch_digits.py"
    output = launch(2, sys.executable, script, *arguments, folder=tmp_path)
    assert accuracy_of(output) >= 0.9


@pytest.mark.timeout(2 * SECONDS)
def test_horovod_script_runs_unmodified(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = EXAMPLES / "torch_mnist.py"
    assert "horoscale" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    output = launch(2, sys.executable, script, folder=tmp_path, flags=("--compat",))
    assert accuracy_of(output) >= 0.9


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(("form", "num_ranks"), [("static", 3), ("dynamic", 4)])
def test_parts_of_a_model_in_process_sets(form: str, num_ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = EXAMPLES / f"process_sets_{form}.py"
    arguments = ("--epochs", "4", "--batch", "240")
    output = launch(num_ranks, sys.executable, script, *arguments, folder=tmp_path)
    assert accuracy_of(output) >= 0.8
    # The example itself fails if the difference exceeds rounding.
    assert "largest difference from one process" in output


@pytest.mark.parametrize("name", ["numpy_allreduce", "pipeline_schedules", "pipeline_two_stages"])
def test_examples_without_options_refuse_any(name: str) -> None:
    refused = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--epochs", "3"], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "unrecognized arguments: --epochs 3" in refused.stderr


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_numpy_example(num_ranks: int, tmp_path: Path) -> None:
    output = launch(num_ranks, sys.executable, EXAMPLES / "numpy_allreduce.py", folder=tmp_path)
    points = 1000 * num_ranks
    assert f"{num_ranks} ranks, {points} points: y = 3.00 x + 0.50" in output


def test_pipeline_of_two_stages(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = launch(2, sys.executable, EXAMPLES / "pipeline_two_stages.py", folder=tmp_path)
    assert "the same weights as in one process: True" in output


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("num_ranks", "options"), [(2, "--tp 2"), (4, "--tp 2 --cp 2"), (4, "--tp 2")]
)
def test_a_state_space_model_in_parts(num_ranks: int, options: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = (*options.split(), "--steps", "8", "--length", "50", "--compare")
    output = launch(
        num_ranks, sys.executable, EXAMPLES / "mamba_parallel.py", *arguments, folder=tmp_path
    )
    (difference,) = re.findall(r"largest difference from one process (\S+)", output)
    assert float(difference) < 1e-10, output


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_schedules_of_a_pipeline(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = launch(ranks, sys.executable, EXAMPLES / "pipeline_schedules.py", folder=tmp_path)
    rows = re.findall(r"^\S*?([\w-]+) +(\d\.\d{4}) +\d\.\d{3} +\d+ +True$", output, re.MULTILINE)
    assert [name for name, _ in rows] == ["gpipe", "1f1b", "zb-h1", "interleaved"], output
    assert len({loss for _, loss in rows}) == 1
    assert float(rows[0][1]) < 1.0


@pytest.mark.timeout(SECONDS)
def test_digits_are_learned_while_a_rank_dies(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = ("--epochs", "6", "--kill-every", "20")
    script = EXAMPLES / "elastic_digits.py"
    flags = ("--min-np", "1")
    output = launch(2, sys.executable, script, *arguments, folder=tmp_path, flags=flags)
    assert re.findall(r"epoch (\d) on", output) == list("123456"), output
    assert " on 1 ranks" in output  # while the replacement imports torch
    assert accuracy_of(output) >= 0.93


@pytest.mark.timeout(SECONDS)
def test_process_sets_while_a_rank_dies(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = ("--epochs", "8", "--kill", "encoder")
    script = EXAMPLES / "elastic_process_sets.py"
    output = launch(4, sys.executable, script, *arguments, folder=tmp_path, flags=("--min-np", "2"))
    found = re.findall(r"epoch (\d) on (\d) ranks: (.*)", output)
    assert [int(epoch) for epoch, _, _ in found] == list(range(1, 9)), output
    four, three = "[0, 1] encode, [2, 3] decode", "[0] encode, [1, 2] decode"
    assert [who for _, _, who in found][:3] == [four, four, three]
    # The replacement may have arrived before the end.
    assert {(size, who) for _, size, who in found} == {("4", four), ("3", three)}
    assert accuracy_of(output) >= 0.85


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_c_example(tmp_path: Path) -> None:
    flags = run(sys.executable, "-m", "horoscale.config", "--cflags", "--libs", folder=tmp_path)
    program = tmp_path / "c_allreduce"
    run("cc", EXAMPLES / "c_allreduce.c", "-o", program, *flags.split(), folder=tmp_path)
    assert "rank 0 of 1: the sum is 1\n" in run(program, folder=tmp_path)
    output = launch(3, program, folder=tmp_path)
    for rank in range(3):
        assert f"rank {rank} of 3: the sum is 6\n" in output


def test_benchmark_measures_and_verifies(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    figures = tmp_path / "figures.json"
    benchmark = ROOT / "benchmarks" / "allreduce.py"
    output = run(
        *(sys.executable, benchmark, "--smoke", "--peers", "gloo", "--json", figures),
        folder=tmp_path,
    )
    assert "gloo / horoscale: " in output
    seconds = json.loads(figures.read_text())["seconds"]
    assert seconds.keys() == {"4 KiB", "1 MiB"}
    for of_size in seconds.values():
        assert of_size.keys() == {"horoscale", "horoscale-shared", "horoscale-torch", "gloo"}


def test_benchmark_of_messages(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = run(sys.executable, ROOT / "benchmarks" / "messages.py", "--smoke", folder=tmp_path)
    assert "gloo / horoscale: " in output


def test_benchmark_of_watching(tmp_path: Path) -> None:
    benchmark = ROOT / "benchmarks" / "watching.py"
    output = run(sys.executable, benchmark, "--runs", "1", "--seconds", "0.2", folder=tmp_path)
    assert "64 process sets" in output
    assert "the launcher of 1000 ranks" in output
    assert "us more in the median pair" in output


def test_benchmark_of_training_steps(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    figures = tmp_path / "figures.json"
    benchmark = ROOT / "benchmarks" / "training.py"
    output = run(
        *(sys.executable, benchmark, "--smoke", "--steps", "2", "--json", figures), folder=tmp_path
    )
    assert "ddp / horoscale-overlap" in output
    assert json.loads(figures.read_text())["seconds"].keys() == {"transformer"}


def test_benchmark_of_training_by_torch_distributed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    figures = tmp_path / "figures.json"
    benchmark = ROOT / "benchmarks" / "torch_distributed_training.py"
    output = run(sys.executable, benchmark, "--smoke", "--json", figures, folder=tmp_path)
    assert "gloo / horoscale" in output
    seconds = json.loads(figures.read_text())["seconds"]
    assert seconds.keys() == {"ddp transformer", "1f1b 30 ms"}


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
@pytest.mark.parametrize("link", [(), ("--delay-us", "200", "--connection-rate", "1e9")])
def test_benchmark_between_hosts(link: tuple[str, ...], tmp_path: Path) -> None:
    benchmark = ROOT / "benchmarks" / "hosts.py"
    output = run(sys.executable, benchmark, "--smoke", *link, folder=tmp_path)
    assert "| 1,048,576 |" in output


@pytest.mark.timeout(2 * SECONDS)
def test_benchmark_of_memory_and_its_formulas(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "parallel_memory.py"
    output = run(sys.executable, benchmark, "--smoke", folder=tmp_path)
    rows = [line.split("|")[1:-1] for line in output.splitlines()[2:]]
    assert [row[0].strip() for row in rows] == ["one", "tp, sequence"], output
    for row in rows:
        state, state_formula, activations, activations_formula = map(float, row[2:6])
        assert abs(state - state_formula) <= 0.1, output
        assert activations_formula <= activations <= 1.2 * activations_formula + 0.1, output


@pytest.mark.timeout(2 * SECONDS)
def test_benchmark_of_divided_training_state(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "parallel_zero.py"
    output = run(sys.executable, benchmark, "--smoke", folder=tmp_path)
    assert "fsdp2 / stage 3: " in output
    assert "zero redundancy / stage 1: " in output
    assert re.search(r"stage 3 +\d+\.\d   of DDP: ", output), output


def test_benchmark_of_offloaded_training_state(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "parallel_offload.py"
    output = run(sys.executable, benchmark, "--smoke", folder=tmp_path)
    for case in ("gather", "step"):
        assert re.search(rf"{case}: of what the disk does \d+\.\d\d", output), output


def test_offloaded_training_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = EXAMPLES / "offload_training.py"
    output = launch(2, sys.executable, script, "--folder", tmp_path, folder=tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]
    assert losses[-1] < losses[0], output


def test_benchmark_of_divided_layers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "parallel.py"
    output = run(sys.executable, benchmark, "--smoke", "--sections", "layers", folder=tmp_path)
    assert "dtensor / ours: " in output


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
def test_benchmark_of_ring_attention(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "parallel_ring.py"
    output = run(sys.executable, benchmark, "--smoke", folder=tmp_path)
    assert "backward 64 at 250 Mbit/s: hidden " in output


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
def test_benchmark_of_model_parallelism_between_hosts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "parallel.py"
    output = run(sys.executable, benchmark, "--smoke", "--sections", "network", folder=tmp_path)
    sent = {
        way: float(megabytes)
        for way, megabytes in re.findall(r"^ +(\w+) +\d+\.\d +(\d+\.\d+) ", output, re.MULTILINE)
    }
    assert sent["one"] < sent["pp"] < min(sent["tp"], sent["dp"]), output


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--np", "1"], "--np: with one rank nothing is reduced"),
        (["--sizes", "65537"], "--sizes: the elements are float32, a size is a multiple of 4"),
        (["--smoke"], "no GPU: PyTorch"),
    ],
)
def test_benchmark_of_nccl_refuses(arguments: list[str], refusal: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() and arguments == ["--smoke"]:
        pytest.skip("there is a GPU: it is measured")
    benchmark = ROOT / "benchmarks" / "nccl.py"
    said = subprocess.run([sys.executable, benchmark, *arguments], capture_output=True, text=True)
    assert said.returncode == 2
    assert refusal in said.stderr


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
@pytest.mark.timeout(240)  # ten ranks with PyTorch
def test_benchmark_of_overlap_and_its_pictures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    benchmark = ROOT / "benchmarks" / "overlap.py"
    output = run(
        *(sys.executable, benchmark, "--smoke", "--steps", "2", "--implementations", "ddp-fp16"),
        *("--timelines", tmp_path / "steps", "--choices", tmp_path / "choices"),
        folder=tmp_path,
    )
    assert "fifo / priority" in output
    assert "ddp-fp16" in output
    assert "at best" in output
    for picture in ("steps.png", "steps.svg", "choices.png", "choices.svg"):
        assert (tmp_path / picture).stat().st_size > 0


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
def test_benchmark_of_convergence(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    benchmark = ROOT / "benchmarks" / "convergence.py"
    output = run(
        *(sys.executable, benchmark, "--smoke", "--picture", tmp_path / "curves"), folder=tmp_path
    )
    assert "to the goal" in output
    assert (tmp_path / "curves.svg").stat().st_size > 0


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
def test_benchmark_of_local_sgd(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "local_sgd.py"
    output = run(sys.executable, benchmark, "--smoke", "--steps", "2", folder=tmp_path)
    assert "gradients / local-8" in output


def test_report_of_benchmarks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    report = ROOT / "benchmarks" / "report.py"
    output = run(
        *(sys.executable, report, "--smoke", "--only", "gradients,startup", "--output", tmp_path),
        folder=tmp_path,
    )
    assert "ddp / horoscale" in output
    assert "init MiB" in output
    assert (tmp_path / "gradients.png").stat().st_size > 0
    assert (tmp_path / "gradients.svg").stat().st_size > 0


def test_benchmark_of_process_sets_sees_them_overlap(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    benchmark, picture = ROOT / "benchmarks" / "process_sets.py", tmp_path / "overlap.png"
    output = run(sys.executable, benchmark, "--smoke", "--picture", picture, folder=tmp_path)
    assert "4 at once:" in output
    (found,) = re.findall(r"also another's: (\d+)% together, (\d+)% apart", output)
    assert int(found[0]) > 0
    assert int(found[1]) == 0
    assert picture.stat().st_size > 0


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (2, ["--tp", "2", "--sequence-parallel"]),
        (2, ["--pp", "2"]),
        (4, ["--tp", "2", "--dp", "2"]),
        (4, ["--pp", "2", "--dp", "2", "--microbatches", "2"]),
        (4, ["--tp", "2", "--cp", "2", "--sequence-parallel", "--length", "33"]),
        (4, ["--tp", "2", "--pp", "2", "--schedule", "zb-h1"]),
        (2, ["--zero", "3"]),
        (4, ["--tp", "2", "--zero", "2"]),
        (2, ["--zero", "3", "--offload", "."]),
    ],
)
def test_a_gpt_divided_among_ranks(ranks: int, arguments: list[str], tmp_path: Path) -> None:
    """The same losses as in one process, which the example checks itself."""
    pytest.importorskip("torch")
    small = ["--dim", "32", "--layers", "2", "--steps", "11", "--batch", "4", "--lr", "0.01"]
    script = EXAMPLES / "gpt_parallel.py"
    output = launch(ranks, sys.executable, script, *arguments, *small, "--check", folder=tmp_path)
    assert "largest difference from one process" in output
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]
    assert losses[-1] < losses[0] - 0.3, output


@pytest.mark.timeout(4 * SECONDS)
def test_training_that_goes_on_on_another_mesh(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = EXAMPLES / "checkpoint_reshard.py"
    uninterrupted = run(sys.executable, script, "--steps", "30", "--every", "99", folder=tmp_path)
    first = launch(2, sys.executable, script, "--steps", "10", folder=tmp_path)
    arguments = ("--tp", "2", "--pp", "2", "--steps", "20")
    second = launch(4, sys.executable, script, *arguments, folder=tmp_path)
    third = run(sys.executable, script, "--steps", "30", folder=tmp_path)
    assert "Mesh(tp=2, cp=1, dp=1, pp=2), from checkpoint-000000000010" in second
    losses = [
        re.findall(r"loss (\d\.\d{10})", text) for text in (first + second + third, uninterrupted)
    ]
    assert losses[0] == losses[1], losses


@pytest.mark.timeout(2 * SECONDS)
def test_benchmark_of_model_parallelism(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    benchmark = ROOT / "benchmarks" / "parallel.py"
    arguments = ("--sections", "pipeline", "--smoke")
    output = run(sys.executable, benchmark, *arguments, folder=tmp_path)
    assert re.search(r"1f1b   ideal 0\.111   gloo 0\.\d+ .*   horoscale 0\.\d+ ", output), output
