"""SIGTERM in one process, with a function that is called before it ends."""

from __future__ import annotations

import signal

import pytest
from support.ranks import run_alone

BEGIN = """
import multiprocessing, os, signal, threading, time
from horoscale.elastic.termination import before_sigterm

def last():
    print("last words of", threading.current_thread().name, flush=True)

def forever():
    threading.Event().wait()
"""
LAST = "last words of horoscale-termination\n"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM); forever()", 143, LAST),
        # A handler in the main thread would have to wait for the end of this call.
        ("os.kill(os.getpid(), signal.SIGTERM); os.read(os.pipe()[0], 1)", 143, LAST),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, ""),
        ("pass", 0, ""),
    ],
)
def test_within_the_context(body: str, status: int, said: str) -> None:
    ended = run_alone(f"{BEGIN}\nwith before_sigterm(last): {body}")
    assert (ended.returncode, ended.stdout) == (status, said)


@pytest.mark.parametrize("last", ["last", "None"])
def test_after_it_and_without_a_function_nothing_has_changed(last: str) -> None:
    after = f"with before_sigterm({last}): pass\nos.kill(os.getpid(), signal.SIGTERM)"
    assert run_alone(BEGIN + after).returncode == -signal.SIGTERM
    within = "with before_sigterm(None): os.kill(os.getpid(), signal.SIGTERM)"
    assert run_alone(BEGIN + within).returncode == -signal.SIGTERM


def test_a_handler_of_the_program_stays() -> None:
    ended = run_alone(f"""{BEGIN}
signal.signal(signal.SIGTERM, lambda *_: print("mine"))
with before_sigterm(last): os.kill(os.getpid(), signal.SIGTERM)
""")
    assert (ended.returncode, ended.stdout) == (0, "mine\n")


def test_children_end_as_they_did() -> None:
    ended = run_alone(f"""{BEGIN}
with before_sigterm(last):
    child = multiprocessing.get_context("fork").Process(target=forever)
    child.start()
    child.terminate()
    child.join()
    print(child.exitcode)
""")
    assert (ended.returncode, ended.stdout) == (0, "-15\n"), ended
