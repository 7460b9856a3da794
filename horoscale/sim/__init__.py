"""The control plane of the runtime as Python objects, for simulation and property tests.

These are the classes of `cpp/core/` that every rank runs, without any I/O: a `Member` for each rank
of a process set, a `Coordinator` for its lowest rank, and the messages between them with their
encoding. docs/scaling.md simulates large jobs with them.

The module is compiled only on request: `HOROSCALE_BUILD_SIM=1 pip install .`
"""

from __future__ import annotations

try:
    from horoscale.sim._sim import (
        Action,
        ActionType,
        Aggregator,
        Bucket,
        Coordinator,
        CoordinatorOptions,
        DataType,
        EntryType,
        FusionPlanner,
        GroupReport,
        JobModel,
        JobSimulation,
        JointReport,
        LaunchOrder,
        LaunchStamp,
        Member,
        Negotiator,
        OpKind,
        Part,
        Piece,
        PlanEntry,
        PlanItem,
        ReduceOp,
        Report,
        Request,
        Scheduler,
        Signature,
        SlotTable,
        StallReport,
        StampCollector,
        StatusCode,
        StatusError,
        StepCost,
        TensorSpec,
        Terms,
        UnnamedHit,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "horoscale was built without its simulator; HOROSCALE_BUILD_SIM=1 pip install . has it",
        name="horoscale.sim._sim",
    ) from error

__all__ = [
    "Action",
    "ActionType",
    "Aggregator",
    "Bucket",
    "Coordinator",
    "CoordinatorOptions",
    "DataType",
    "EntryType",
    "FusionPlanner",
    "GroupReport",
    "JobModel",
    "JobSimulation",
    "JointReport",
    "LaunchOrder",
    "LaunchStamp",
    "Member",
    "Negotiator",
    "OpKind",
    "Part",
    "Piece",
    "PlanEntry",
    "PlanItem",
    "ReduceOp",
    "Report",
    "Request",
    "Scheduler",
    "Signature",
    "SlotTable",
    "StallReport",
    "StampCollector",
    "StatusCode",
    "StatusError",
    "StepCost",
    "TensorSpec",
    "Terms",
    "UnnamedHit",
]
