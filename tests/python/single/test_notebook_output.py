"""The output of horoscale.run() below a cell, without a notebook."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from horoscale.runner.notebook import NotebookOutput, display_of_cell


class Cell:
    def __init__(self, ranks: int = 2) -> None:
        self.now = 0.0
        self.shown: list[dict[str, str]] = []
        self.displays: list[dict[str, str]] = [{}]  # current values
        self.output = NotebookOutput(self.show, ranks, lambda: self.now)

    def show(self, bundle: dict[str, str], /, *, below: bool = False) -> None:
        self.shown.append(bundle)
        self.displays[len(self.displays) if below else -1 :] = [bundle]

    @property
    def page(self) -> str:
        return "".join(one["text/html"] for one in self.displays)

    def folds(self) -> list[str]:
        return re.findall(r"<summary>(.*?)</summary>", self.page)


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port that answers one request with these bytes, and then closes."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(30)
            connection.recv(1 << 16)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        server = threading.Thread(target=serve)
        server.start()
        yield listener.getsockname()[1]
        server.join(30)


def test_outside_of_a_notebook_there_is_no_cell() -> None:
    assert display_of_cell() is None


def test_output_is_folded_by_rank() -> None:
    cell = Cell()
    cell.output.feed("stdout", "[1]<stdout>:one\n[0]<stdout>:zero\n[1]<std")
    cell.output.feed("stdout", "out>:two\n")
    cell.output.finish(0)
    assert cell.folds() == [
        "rank 0 · 1 line · <code>zero</code>",
        "rank 1 · 2 lines · <code>two</code>",
    ]
    assert "<pre>one\ntwo</pre>" in cell.page
    assert "ended well after" in cell.page
    assert " open" not in cell.page
    head, said = cell.displays
    assert head["text/plain"].startswith("horoscale.run: ended well after")
    assert said["text/plain"].splitlines() == ["[0] zero", "[1] one", "[1] two"]


def test_all_output_is_shown_anew_at_the_end_for_front_ends_that_update_nothing() -> None:
    cell = Cell()
    cell.output.feed("stdout", "[0]<stdout>:zero\n")
    assert len(cell.displays) == 1
    assert cell.page.count("<code>zero</code>") == 1  # meanwhile, where it is updated
    cell.output.feed("stderr", "horoscalerun: rank 1 failed first\n")
    cell.output.finish(1)
    assert len(cell.displays) == 2
    assert cell.page.count("<code>zero</code>") == 1
    assert cell.displays[1]["text/plain"] == "[0] zero\nhoroscalerun: rank 1 failed first"


def test_without_output_there_is_one_line() -> None:
    cell = Cell()
    cell.output.finish(0)
    assert len(cell.displays) == 1
    assert "ended well after" in cell.page


def test_what_ranks_print_is_text_and_no_page() -> None:
    cell = Cell()
    cell.output.feed("stdout", "[0]<stdout>:<script>alert(1)</script>\x1b[2J&\n<b>\n")
    cell.output.finish(0)
    assert "<script>" not in cell.page
    assert "<b>" not in cell.page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J&amp;" in cell.page


def test_a_progress_bar_is_one_line() -> None:
    cell = Cell()
    for percent in range(100):
        cell.output.feed("stderr", f"[0]<stderr>:{percent} %\r")
    cell.output.feed("stderr", "[0]<stderr>:done\n")
    cell.output.finish(0)
    assert cell.folds() == ["rank 0 · 1 line · <code>done</code>"]


def test_a_rank_that_failed_is_unfolded_and_the_launcher_speaks() -> None:
    cell = Cell()
    cell.output.feed(
        "stderr",
        "[0]<stderr>:quiet\n[1]<stderr>:Traceback (most recent call last):\n"
        "[1]<stderr>:ValueError: no\nhoroscalerun: rank 1 failed first\n",
    )
    cell.output.finish(1)
    assert cell.page.count("<details open>") == 1
    assert "<details open><summary>rank 1" in cell.page
    assert "<pre>horoscalerun: rank 1 failed first</pre>" in cell.page
    assert "failed after" in cell.page


def test_endless_output_takes_no_endless_memory() -> None:
    cell = Cell(ranks=256)
    for number in range(20_000):
        cell.output.feed("stdout", f"[7]<stdout>:line {number}\n")
    cell.output.finish(0)
    assert len(cell.page) < 16_000
    assert "20000 lines" in cell.page
    assert "lines before these" in cell.page


def test_it_is_shown_anew_twice_a_second_at_most() -> None:
    cell = Cell()
    for _ in range(1000):
        cell.now += 0.001
        cell.output.feed("stdout", "[0]<stdout>:x\n")
    assert len(cell.shown) <= 3


def test_the_status_of_the_job_is_not_part_of_the_output() -> None:
    cell = Cell()
    line = "horoscalerun: status: http://127.0.0.1:1/ (token: HOROSCALE_STATUS_TOKEN)\n"
    cell.output.feed("stderr", line)  # nobody answers there
    cell.output.finish(0)
    assert "127.0.0.1" not in cell.page


JOB = b'{"state": "running", "size": 2, "steps": 0}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(JOB)


def test_progress_is_asked_for_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horoscale.runner.notebook._ASK_S", 30.0)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # without a listener
    with answering(HEAD + JOB) as port:
        cell = Cell()
        cell.output.feed(
            "stderr",
            f"horoscalerun: status: http://127.0.0.1:{port}/ (token: HOROSCALE_STATUS_TOKEN)\n",
        )
    assert "running, 2 ranks" in cell.page


def test_a_launcher_that_ends_in_its_answer_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horoscale.runner.notebook._ASK_S", 30.0)
    for answer in (b"", b"nonsense\r\n\r\n", HEAD, HEAD + JOB[:5]):
        with answering(answer) as port:
            cell = Cell()
            cell.output.feed(
                "stderr",
                f"horoscalerun: status: http://127.0.0.1:{port}/ (token: HOROSCALE_STATUS_TOKEN)\n",
            )
        cell.output.finish(0)
        assert "ended well after" in cell.page
