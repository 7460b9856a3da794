"""How batches are started and waited for."""

from __future__ import annotations

from horoscale.common.batches import Kind, P2POp, run_batch


def test_sends_start_first_and_results_keep_their_order() -> None:
    started: list[str] = []

    class Handle:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait(self) -> str:
            return f"result of {self.name}"

    def prepared(name: str, *_: object):
        def start() -> Handle:
            started.append(name)
            return Handle(name)

        return start

    def send() -> None: ...

    def recv() -> None: ...

    kinds = [Kind([recv], prepared), Kind([send], prepared, is_send=True)]
    names = ["recv a", "send a", "recv b", "send b"]
    operations = [P2POp(send if "send" in name else recv, name, 0) for name in names]
    assert run_batch(operations, kinds) == [f"result of {name}" for name in names]
    assert started == ["send a", "send b", "recv a", "recv b"]


def test_all_bindings_say_what_sends() -> None:
    from horoscale.numpy import messages

    sends = [kind for kind in messages._KINDS if kind.is_send]
    assert [kind.functions[0] for kind in sends] == [messages.send]
