"""The process around its job: launchers, fork, exit, variables, a wrong library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.ranks import clean_environment, run_alone

INIT = "import horoscale.numpy as hvd; hvd.init(); print(hvd.rank(), hvd.size())"


def test_without_a_launcher_it_is_one_rank() -> None:
    ended = run_alone(INIT)
    assert (ended.returncode, ended.stdout) == (0, "0 1\n"), ended.stderr


TORCHRUN = {"WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_ranks_that_can_not_meet_through_torch_are_told_where_they_tried() -> None:
    pytest.importorskip("torch")
    ended = run_alone(INIT, **TORCHRUN, HOROSCALE_START_TIMEOUT="1")
    assert ended.returncode == 1
    assert "HorovodInternalError: rank 1 of 4 cannot reach rank 0 through torch's" in ended.stderr
    assert "MASTER_ADDR=127.0.0.1, MASTER_PORT=1" in ended.stderr


def test_torchruns_ranks_on_several_hosts_do_not_encrypt_with_a_secret_sent_in_clear() -> None:
    variables = {**TORCHRUN, "LOCAL_WORLD_SIZE": "2", "HOROSCALE_ENCRYPT": "1"}
    ended = run_alone(INIT, **variables)
    assert ended.returncode == 1
    assert "ValueError: HOROSCALE_ENCRYPT=1 needs a secret" in ended.stderr
    assert "HOROSCALE_SECRET_FILE" in ended.stderr


def test_a_rank_of_torchruns_that_serves_nothing_reads_the_same_variables() -> None:
    ended = run_alone(INIT, **TORCHRUN, LOCAL_WORLD_SIZE="4", HOROSCALE_ENCRYPT="maybe")
    assert ended.returncode == 1
    assert "ValueError: HOROSCALE_ENCRYPT='maybe' is neither 1 nor 0" in ended.stderr


def test_torchruns_ranks_without_torch_are_told_what_to_do() -> None:
    ended = run_alone("import sys; sys.modules['torch.distributed'] = None\n" + INIT, **TORCHRUN)
    assert ended.returncode == 1
    assert "torch.distributed is missing" in ended.stderr
    assert "horoscalerun" in ended.stderr


def test_who_has_no_torch_is_told_what_to_install() -> None:
    ended = run_alone("import sys; sys.modules['torch'] = None\nimport horoscale.torch")
    assert ended.returncode == 1
    assert "ImportError: horoscale.torch needs PyTorch" in ended.stderr
    assert "pip install torch" in ended.stderr


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
def test_a_variable_of_torchruns_that_does_not_parse_is_named(name: str) -> None:
    pytest.importorskip("torch")
    ended = run_alone(INIT, **{**TORCHRUN, name: "x"})
    assert ended.returncode == 1
    assert f"ValueError: {name}='x' does not parse" in ended.stderr


def test_srun_without_mpi_says_how_to_go_on() -> None:
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}
    ended = run_alone(INIT, **slurm, HOROSCALE_LIBMPI="/no/such/library")
    assert ended.returncode == 1
    assert "HOROSCALE_CONTROLLER=gloo, ranks that srun started connect directly" in ended.stderr


def test_srun_off_loopback_needs_a_secret() -> None:
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}
    ended = run_alone(INIT, **slurm, HOROSCALE_RENDEZVOUS="192.0.2.1:1")
    assert ended.returncode == 1
    assert "set HOROSCALE_SECRET or HOROSCALE_SECRET_FILE" in ended.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"},
        {"PMI_SIZE": "4", "PMI_RANK": "1"},
        {"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "1"},
    ],
    ids=["openmpi", "hydra", "srun"],
)
def test_mpi_launchers_without_mpi_are_named_not_ignored(variables: dict[str, str]) -> None:
    """No library can be opened; or the system's MPI starts as a singleton."""
    ended = run_alone(INIT, **variables)
    assert ended.returncode == 1
    assert "one of 4 ranks" in ended.stderr
    assert next(iter(variables)) in ended.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "4"},  # of another user
        {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch shell
        {"PMI_SIZE": "2", "HOROSCALE_RANK": "0", "HOROSCALE_SIZE": "1"},
    ],
    ids=["size_1", "world_size", "torchrun_1", "sbatch", "ours"],
)
def test_what_is_not_a_launcher(variables: dict[str, str]) -> None:
    ended = run_alone(INIT, **variables)
    assert (ended.returncode, ended.stdout) == (0, "0 1\n"), ended.stderr


@pytest.mark.parametrize(
    "variable",
    ["HOROSCALE_SIZE", "HOROVOD_RANK", "HOROSCALE_DYNAMIC_PROCESS_SETS", "HOROSCALE_CREDIT_BYTES"],
)
def test_a_variable_that_does_not_parse_is_named(variable: str) -> None:
    ended = run_alone(INIT, **{variable: "many"})
    assert ended.returncode == 1
    assert "ValueError" in ended.stderr
    assert variable in ended.stderr


def test_dynamic_process_sets_by_variable() -> None:
    script = INIT + "; print(hvd.remove_process_set(hvd.ProcessSet([0])))"
    ended = run_alone(script, HOROVOD_DYNAMIC_PROCESS_SETS="1")
    assert ended.stdout == "0 1\nFalse\n", ended.stderr


def test_a_forked_child_takes_no_part() -> None:
    ended = run_alone(
        """
        import os, sys
        import numpy as np
        import horoscale.numpy as hvd
        hvd.init()
        handle = hvd.allreduce_async(np.ones(3))
        received = hvd.recv_async(np.zeros(100_000), 0)
        shared = hvd.empty_shared(3)
        child = os.fork()
        if child == 0:
            assert not hvd.is_initialized()
            calls = [hvd.init, hvd.rank, lambda: hvd.allreduce(np.ones(3))]
            calls += [lambda: hvd.send(np.ones(3), 0), lambda: hvd.recv(np.ones(3), 0)]
            calls += [lambda: hvd.synchronize(received)]
            for call in calls:
                try:
                    call()
                except ValueError as error:
                    assert "forked" in str(error), error
                else:
                    sys.exit("no error")
            hvd.shutdown()
            sys.exit(0)  # with atexit and destructors
        _, status = os.waitpid(child, 0)
        hvd.send(np.ones(100_000), 0)
        assert hvd.synchronize(received).all()
        print(os.waitstatus_to_exitcode(status), hvd.allreduce(np.ones(1))[0])
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "0 1.0\n"), ended.stderr


def test_a_child_forked_before_init_is_a_process_of_its_own() -> None:
    ended = run_alone(
        """
        import os
        import horoscale.numpy as hvd
        child = os.fork()
        hvd.init()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), hvd.size())
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "0 1\n"), ended.stderr


def test_a_fork_while_the_telemetry_tells_does_not_hang() -> None:
    ended = run_alone(
        """
        import os, socket, time
        own, other = socket.socketpair()
        inode = os.fstat(own.fileno()).st_ino
        os.environ["HOROSCALE_STATUS_LINK"] = f"{own.detach()}:{inode}"
        import horoscale.numpy as hvd
        from horoscale.common import telemetry
        hvd.init()
        with telemetry._telemetry._telling:  # as its thread does
            child = os.fork()
            if child == 0:
                os._exit(0)
        deadline = time.monotonic() + 10
        while (waited := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, 9)
            time.sleep(0.01)
        print(os.waitstatus_to_exitcode(waited[1]))
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr


def test_exit_without_shutdown_and_with_operations_pending() -> None:
    ended = run_alone(
        """
        import numpy as np
        import horoscale.numpy as hvd
        hvd.init()
        handles = [hvd.allreduce_async(np.ones(100_000), name=str(i)) for i in range(100)]
        print("end")
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_an_exception_keeps_its_message_and_status() -> None:
    ended = run_alone(INIT + "\nraise KeyError('first cause')")
    assert ended.returncode == 1
    assert ended.stderr.endswith("KeyError: 'first cause'\n")


def test_an_earlier_excepthook_is_called() -> None:
    ended = run_alone(
        "import sys; sys.excepthook = lambda *a: print('mine', a[0].__name__)\n"
        + INIT
        + "\nraise KeyError"
    )
    assert ended.stdout == "0 1\nmine KeyError\n"


def test_init_by_several_threads_at_once() -> None:
    ended = run_alone(
        """
        import threading
        import horoscale.numpy as hvd
        threads = [threading.Thread(target=hvd.init) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(hvd.size())
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_ctrl_c_ends_a_wait() -> None:
    ended = run_alone(
        """
        import _thread, threading
        import horoscale._core as core
        runtime = core.Runtime.init()
        handle = runtime.enqueue(core.OpKind.JOIN)
        handle.wait()
        threading.Timer(0.3, _thread.interrupt_main).start()
        try:
            while True:
                runtime.enqueue(core.OpKind.BARRIER, will_wait=True).wait()
        except KeyboardInterrupt:
            print("interrupted")
        runtime.shutdown()
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr


def test_another_abi_is_refused(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int hs_abi_version(void) { return 999; }")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    ended = run_alone("import horoscale.numpy", LD_PRELOAD=str(library))
    assert ended.returncode == 1
    assert "ImportError: libhoroscale.so has ABI version 999" in ended.stderr


def test_a_c_program_builds_with_the_installed_header(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    flags = {
        flag: subprocess.run(
            [sys.executable, "-m", "horoscale.config", flag],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for flag in ("--cflags", "--libs")
    }
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(
        "#include <horoscale/horoscale.h>\n"
        "int main(void) { return hs_abi_version() == HS_ABI_VERSION ? 0 : 1; }\n"
    )
    command = [compiler, "-Wall", "-Werror", *flags["--cflags"], source, "-o", program]
    subprocess.run([*command, *flags["--libs"]], check=True)
    subprocess.run([program], check=True, env=clean_environment())
