"""Valid contents of custom resources, as JSON schemas: JobSet, TrainJob and runtimes, MPIJob.

Stated here, by hand, are the fields and types of the published APIs, without their descriptions:

    JobSet                   kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go
    TrainJob, …Runtime       kubeflow/trainer 2, pkg/apis/trainer/v1alpha1/train*_types.go
    MPIJob                   kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go

all of which are under the Apache License 2.0. What Kubernetes itself defines, such as the template
of a pod, is an object here: kubernetes-validate knows it.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "integer", "minimum": 0}
SWITCH: Schema = {"type": "boolean"}
ANY: Schema = {"type": "object"}
METADATA: Schema = {"type": "object"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def fields(required: tuple[str, ...] = (), /, **known: Schema) -> Schema:
    """An object with only these fields."""
    return {
        "type": "object",
        "properties": known,
        "required": list(required),
        "additionalProperties": False,
    }


def listed(item: Schema, most: int = 1 << 20) -> Schema:
    return {"type": "array", "items": item, "maxItems": most}


def one_of(*words: str) -> Schema:
    return {"enum": list(words)}


def resource(version: str, kind: str, spec: Schema) -> Schema:
    return fields(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": kind},
        metadata={"type": "object", "properties": {"name": NAME}, "required": ["name"]},
        spec=spec,
    )


JOB_TEMPLATE = fields(("spec",), metadata=METADATA, spec=ANY)

JOB_SET_SPEC = fields(
    (),
    replicatedJobs=listed(
        fields(
            ("name", "template"),
            name=NAME,
            groupName=TEXT,
            template=JOB_TEMPLATE,
            replicas=NUMBER,
            dependsOn=listed(
                fields(("name", "status"), name=NAME, status=one_of("Ready", "Complete")), 5
            ),
        )
    ),
    network=fields((), enableDNSHostnames=SWITCH, subdomain=TEXT, publishNotReadyAddresses=SWITCH),
    successPolicy=fields(
        ("operator",), operator=one_of("All", "Any"), targetReplicatedJobs=listed(NAME)
    ),
    failurePolicy=fields(
        (),
        maxRestarts=NUMBER,
        restartStrategy=one_of("Recreate", "BlockingRecreate", "InPlaceRestart"),
        rules=listed(
            fields(
                ("name", "action"),
                name=TEXT,
                action=one_of(
                    "FailJobSet",
                    "RestartJobSet",
                    "RestartJobSetAndIgnoreMaxRestarts",
                    "RestartJob",
                    "RestartJobAndIgnoreMaxRestarts",
                ),
                onJobFailureReasons=listed(TEXT),
                onJobFailureMessagePatterns=listed(TEXT),
                targetReplicatedJobs=listed(NAME),
            )
        ),
    ),
    startupPolicy=fields(("startupPolicyOrder",), startupPolicyOrder=one_of("AnyOrder", "InOrder")),
    suspend=SWITCH,
    coordinator=fields(("replicatedJob",), replicatedJob=NAME, jobIndex=NUMBER, podIndex=NUMBER),
    managedBy=TEXT,
    ttlSecondsAfterFinished=NUMBER,
    volumeClaimPolicies=listed(ANY, 50),
)

RUNTIME_SPEC = fields(
    (),
    mlPolicy=fields(
        (),
        numNodes=NUMBER,
        torch=fields(
            (),
            numProcPerNode={
                "anyOf": [one_of("auto", "cpu", "gpu"), {"type": "integer", "minimum": 1}]
            },
            elasticPolicy=fields(
                (), maxRestarts=NUMBER, minNodes=NUMBER, maxNodes=NUMBER, metrics=listed(ANY)
            ),
        ),
        flux=fields((), numProcPerNode=ANY),
        mpi=fields(
            (),
            numProcPerNode=NUMBER,
            mpiImplementation=one_of("OpenMPI", ""),
            sshAuthMountPath=TEXT,
            runLauncherAsNode=SWITCH,
        ),
    ),
    podGroupPolicy=fields((), coscheduling=fields((), scheduleTimeoutSeconds=NUMBER), volcano=ANY),
    template=fields((), metadata=METADATA, spec=JOB_SET_SPEC),
)

INITIALIZER = fields((), storageUri=TEXT, env=listed(ANY, 128), secretRef=ANY)

TRAIN_JOB_SPEC = fields(
    ("runtimeRef",),
    runtimeRef=fields(("name",), name=TEXT, apiGroup=TEXT, kind=TEXT),
    initializer=fields((), dataset=INITIALIZER, model=INITIALIZER),
    trainer=fields(
        (),
        image=TEXT,
        command=listed(TEXT, 128),
        args=listed(TEXT, 128),
        env=listed(ANY, 128),
        numNodes=NUMBER,
        resourcesPerNode=fields((), requests=ANY, limits=ANY, claims=listed(ANY)),
        numProcPerNode=NUMBER,
    ),
    runtimePatches=listed(
        fields(("manager",), manager=TEXT, time=TEXT, trainingRuntimeSpec=ANY), 16
    ),
    suspend=SWITCH,
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    managedBy=one_of("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"),
)

REPLICA = fields(
    ("template",),
    replicas=NUMBER,
    template=fields(("spec",), metadata=METADATA, spec=ANY),
    restartPolicy=one_of("Always", "OnFailure", "Never", "ExitCode"),
)

MPI_JOB_SPEC = fields(
    ("mpiReplicaSpecs",),
    slotsPerWorker=NUMBER,
    runLauncherAsWorker=SWITCH,
    runPolicy=fields(
        (),
        cleanPodPolicy=one_of("All", "Running", "None"),
        ttlSecondsAfterFinished=NUMBER,
        activeDeadlineSeconds=NUMBER,
        backoffLimit=NUMBER,
        schedulingPolicy=ANY,
        suspend=SWITCH,
        managedBy=TEXT,
    ),
    mpiReplicaSpecs=fields(("Launcher",), Launcher=REPLICA, Worker=REPLICA),
    sshAuthMountPath=TEXT,
    launcherCreationPolicy=one_of("AtStartup", "WaitForWorkersReady"),
    mpiImplementation=one_of("OpenMPI", "Intel", "MPICH"),
)

TRAINER = "trainer.kubeflow.org/v1alpha1"
SCHEMAS: dict[tuple[str, str], Schema] = {
    (version, kind): resource(version, kind, spec)
    for version, kind, spec in (
        ("jobset.x-k8s.io/v1alpha2", "JobSet", JOB_SET_SPEC),
        (TRAINER, "ClusterTrainingRuntime", RUNTIME_SPEC),
        (TRAINER, "TrainingRuntime", RUNTIME_SPEC),
        (TRAINER, "TrainJob", TRAIN_JOB_SPEC),
        ("kubeflow.org/v2beta1", "MPIJob", MPI_JOB_SPEC),
    )
}
