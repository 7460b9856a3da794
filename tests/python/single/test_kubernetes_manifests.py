"""The manifests are valid for Kubernetes and the operators, and consistent."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.custom_resources import SCHEMAS

import horoscale.kubernetes.command as command
from horoscale.runner.launch import make_parser

jsonschema = pytest.importorskip("jsonschema")
KUBERNETES = Path(__file__).parents[3] / "docker" / "kubernetes"
VERSION = "1.32"
MANIFESTS = sorted(
    path.relative_to(KUBERNETES)
    for path in KUBERNETES.rglob("*.yaml")
    if path.name != "kustomization.yaml"
)
Document = dict[str, Any]


def documents(path: Path | str) -> list[Document]:
    return list(yaml.safe_load_all((KUBERNETES / path).read_text()))


def only(path: str, kind: str) -> Document:
    (found,) = (one for one in documents(path) if one["kind"] == kind)
    return found


def nested(value: Any) -> Iterator[Document]:
    """All objects in a document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from nested(one)


def pod_specs(document: Document) -> list[Document]:
    return [one for one in nested(document) if "containers" in one]


@pytest.mark.parametrize("path", MANIFESTS, ids=str)
def test_what_is_applied_is_valid(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in documents(path):
        schema = SCHEMAS.get((document["apiVersion"], document["kind"]))
        if schema is None:
            validate(document, VERSION, strict=True)
            continue
        jsonschema.Draft202012Validator(schema).validate(document)
        for replicated in document["spec"].get("replicatedJobs", []):
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}}
            validate(job | {"spec": replicated["template"]["spec"]}, VERSION, strict=True)
        for spec in pod_specs(document):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
            validate(pod, VERSION, strict=True)


@pytest.mark.parametrize(
    ("path", "kind", "change"),
    [
        ("jobset.yaml", "JobSet", {"replicas": 2}),
        ("train-job.yaml", "TrainJob", {"podTemplateOverrides": []}),
        ("train-job.yaml", "TrainJob", {"runtimeRef": {}}),
        ("mpi-job.yaml", "MPIJob", {"mpiImplementation": "LAM"}),
    ],
)
def test_what_the_operators_do_not_know_is_found(path: str, kind: str, change: Document) -> None:
    document = copy.deepcopy(only(path, kind))
    document["spec"] |= change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMAS[document["apiVersion"], kind])


@pytest.mark.parametrize("path", MANIFESTS, ids=str)
def test_no_container_is_root_or_may_become_it(path: Path) -> None:
    for document in documents(path):
        for pod in pod_specs(document):
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["securityContext"]["runAsUser"] == 1000
            for container in pod["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False


def variables(pod: Document) -> Document:
    (container,) = pod["containers"]
    return {one["name"]: one.get("value") for one in container["env"]}


def test_the_ranks_of_a_job_set_find_the_first() -> None:
    job_set = only("jobset.yaml", "JobSet")
    (replicated,) = job_set["spec"]["replicatedJobs"]
    told = variables(pod_specs(job_set)[0])
    first = f"{job_set['metadata']['name']}-{replicated['name']}-0-0"
    subdomain = job_set["spec"]["network"]["subdomain"]
    assert told["HOROSCALE_RENDEZVOUS"] == f"{first}.{subdomain}:29500"
    assert told["HOROSCALE_SIZE"] == str(replicated["template"]["spec"]["completions"])


def test_the_train_job_uses_the_runtime() -> None:
    runtime = only("train-job.yaml", "ClusterTrainingRuntime")
    job = only("train-job.yaml", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    # The labels by which the trainer finds what to change.
    label = "trainer.kubeflow.org/trainjob-ancestor-step"
    assert replicated["template"]["metadata"]["labels"] == {label: "trainer"}
    (container,) = pod_specs(runtime)[0]["containers"]
    assert container["name"] == replicated["name"] == "node"


def test_the_elastic_job_is_one() -> None:
    job_set = only("elastic.yaml", "JobSet")
    launcher, workers = job_set["spec"]["replicatedJobs"]
    launch, work = (pod["containers"][0] for pod in pod_specs(job_set))
    name, subdomain = job_set["metadata"]["name"], job_set["spec"]["network"]["subdomain"]
    ports = {one["name"]: one["containerPort"] for one in launch["ports"]}
    assert ports["agents"] == command.PORT
    assert f"{name}-{launcher['name']}-0-0.{subdomain}:{command.PORT}" in work["command"]
    (selector,) = (word for word in launch["command"] if word.startswith("--selector="))
    assert selector.endswith(f"replicatedjob-name={workers['name']}")
    # Our options, and the port that the kubelet probes.
    words = launch["command"]
    rest = words[words.index("--") + 1 :]
    parsed, _ = make_parser().parse_known_args(rest)
    assert f"--status-port={ports['status']}" in rest
    assert launch["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "status"}
    assert (parsed.min_num_proc, parsed.num_proc) == ("2", "4")
    # The launcher has the permissions that it needs, and no others.
    assert only("elastic.yaml", "Role")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    ]
    account = only("elastic.yaml", "ServiceAccount")["metadata"]["name"]
    assert pod_specs(job_set)[0]["serviceAccountName"] == account
    assert "serviceAccountName" not in pod_specs(job_set)[1]
    assert job_set["spec"]["successPolicy"]["targetReplicatedJobs"] == [launcher["name"]]


def test_kustomizations_change_what_is_there() -> None:
    base = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())
    resources = [one for path in base["resources"] for one in documents(Path("base") / path)]
    overlay = yaml.safe_load((KUBERNETES / "gpu" / "kustomization.yaml").read_text())
    assert overlay["resources"] == ["../base"]
    (change,) = overlay["patches"]
    patch = yaml.safe_load(change["patch"])
    (target,) = (
        one
        for one in resources
        if (one["kind"], one["metadata"]["name"])
        == (change["target"]["kind"], change["target"]["name"])
    )
    names = {one["name"] for one in pod_specs(target)[0]["containers"]}
    assert {one["name"] for one in pod_specs(patch)[0]["containers"]} <= names
    assert variables(pod_specs(patch)[0])["HOROSCALE_SIZE"] == str(patch["spec"]["completions"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize(("folder", "size"), [("base", 4), ("gpu", 8)])
def test_kubectl_builds_the_kustomizations(folder: str, size: int) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    built = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES / folder],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = {one["kind"]: one for one in yaml.safe_load_all(built.stdout)}
    for document in found.values():
        validate(document, VERSION, strict=True)
    job = found["Job"]["spec"]
    (pod,) = pod_specs(found["Job"])
    (container,) = pod["containers"]
    assert job["completions"] == job["parallelism"] == size
    assert variables(pod)["HOROSCALE_SIZE"] == str(size)
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (folder == "gpu")
    assert (container["image"] == "horoscale:cuda") == (folder == "gpu")
    # Labels are added, and the selector of rank 0's service still matches the pods.
    assert found["Service"]["spec"]["selector"] == {"job-name": found["Job"]["metadata"]["name"]}
