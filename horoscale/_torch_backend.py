"""Registers torch.distributed's backend "horoscale" whenever torch is imported.

torch calls announce() through an entry point, in every program that imports torch if horoscale is
installed. It therefore loads nothing. The first process group does.
"""

from __future__ import annotations

from typing import Any


def announce() -> None:
    """Register the backend, as horoscale.torch.distributed does when it is imported."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import register_rendezvous_handler

    if dist.is_available():
        dist.Backend.register_backend("horoscale", _create, extended_api=True, devices=["cpu"])
        register_rendezvous_handler("horoscale", _rendezvous)  # type: ignore[no-untyped-call]


def _create(options: Any, backend_options: object = None) -> Any:
    from horoscale.torch.distributed.registration import create

    return create(options, backend_options)


def _rendezvous(url: str, **options: Any) -> Any:
    from horoscale.torch.distributed import joining

    return joining.rendezvous(url, **options)
