"""The environment of a rank: variables that the launcher sets or forwards to other hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping

from horoscale.runner.hosts import Place

# Variables of a rank of an outer job, which the launcher itself may be part of.
_NOT_INHERITED = ("SECRET", "SECRET_FILE", "TASK_FD", "RESULT_FD", "STATUS_LINK", "STATUS_TOKEN")
_OF_A_JOB = {f"{package}_{name}" for package in ("HOROSCALE", "HOROVOD") for name in _NOT_INHERITED}

# Variables of the launcher's environment that other hosts get, in addition to those from -x.
_FORWARDED = {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "LANG", "TZ"}
_FORWARDED_PREFIXES = (
    *("HOROSCALE_", "HOROVOD_", "PYTHON", "CONDA_", "LC_"),
    *("NCCL_", "CUDA_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_"),
    *("TORCH_", "PYTORCH_", "TF_", "XLA_", "KERAS_", "JAX_"),
)
# Exceptions to the prefixes above: TF_VAR_ and TF_TOKEN_ are Terraform's, not TensorFlow's.
_CREDENTIAL = re.compile(
    r"^TF_VAR_|TOKEN(?!IZERS_)|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY",
    re.IGNORECASE,
)


class ExportError(ValueError):
    """An invalid -x. The message is for the user."""


def exported(flags: Iterable[str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from -x VARIABLE and -x VARIABLE=VALUE. Raises ExportError."""
    variables = {}
    for flag in flags:
        name, separator, value = flag.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ExportError(f"-x: {name!r} is not the name of a variable")
        if not separator and name not in inherited:
            raise ExportError(f"-x {name}: the variable is not set; use -x {name}=VALUE to set it")
        variables[name] = value if separator else inherited[name]
    return variables


def forwarded(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the launcher's environment that ranks on other hosts get, too."""
    return {
        name: value
        for name, value in inherited.items()
        if _is_forwarded(name) and not looks_like_credential(name)
    }


def withheld(inherited: Mapping[str, str], exports: Collection[str]) -> list[str]:
    """Return the variables that are not forwarded because of their names, nor passed by -x."""
    return sorted(
        name
        for name in inherited
        if _is_forwarded(name) and looks_like_credential(name)
        if name not in exports and name not in _OF_A_JOB
    )


def looks_like_credential(name: str) -> bool:
    """Return whether a variable is not forwarded, unless requested, because of its name."""
    return _CREDENTIAL.search(name) is not None


def _is_forwarded(name: str) -> bool:
    return name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES)


def job_environment(
    inherited: Mapping[str, str],
    variables: Mapping[str, str],
    exports: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables that the launcher gives all ranks: forwarded, from flags, and -x."""
    environment = _without_job(forwarded(inherited))
    environment.update({f"HOROSCALE_{name}": value for name, value in variables.items()})
    environment.update(exports)
    return environment


def rendezvous_environment(rendezvous: str, secret: str) -> dict[str, str]:
    """Return the variables that identify the job's store."""
    return {
        "HOROSCALE_RENDEZVOUS": rendezvous,
        "HOROSCALE_RENDEZVOUS_SERVED": "1",  # by the launcher, not by rank 0
        "HOROSCALE_SECRET": secret,
    }


def for_ranks(own: Mapping[str, str], job: Mapping[str, str]) -> dict[str, str]:
    """Return a host's environment updated with the launcher's variables."""
    return {"PYTHONUNBUFFERED": "1", **_without_job(own), **job}


def read_by_ranks(job: Mapping[str, str], name: str) -> str | None:
    """Return the value that ranks will read for one of our variables, named without prefix."""
    return job.get(f"HOROSCALE_{name}", job.get(f"HOROVOD_{name}"))


def encrypts(job: Mapping[str, str]) -> bool:
    """Return whether the ranks encrypt their traffic. Ranks reject an invalid value themselves."""
    word = read_by_ranks(job, "ENCRYPT") or ""
    return word.strip().lower() in ("1", "true", "yes", "on")


def rank_environment(place: Place) -> dict[str, str]:
    """Return the variables that tell a rank its place, under our names and Horovod's."""
    values = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": place.cross_rank,
        "CROSS_SIZE": place.cross_size,
        "HOSTNAME": place.hostname,
        "CONTROLLER": "gloo",
    }
    return {
        f"{package}_{name}": str(value)
        for package in ("HOROSCALE", "HOROVOD")
        for name, value in values.items()
    }


def torch_environment(place: Place, master_address: str, master_port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank, for torch.distributed."""
    values = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "MASTER_ADDR": master_address,
        "MASTER_PORT": master_port,
    }
    return {name: str(value) for name, value in values.items()}


def with_path_first(environment: Mapping[str, str], name: str, directory: str) -> dict[str, str]:
    """Return the environment with a directory prepended to a search path such as PATH."""
    rest = environment.get(name)
    return {**environment, name: f"{directory}{os.pathsep}{rest}" if rest else directory}


def _without_job(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OF_A_JOB}
