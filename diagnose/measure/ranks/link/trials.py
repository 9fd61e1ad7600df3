"""Which setting makes the link faster, slower or hang? The same short sweep, one change each.

A variable counts when the library starts, so every trial has fresh processes. One that hangs is
a row, not the end: its ranks are ended, and the next trial begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diagnose.measure.ranks.job.ends import Outcome
from diagnose.measure.ranks.job.supervise import supervise
from diagnose.records.codec import from_dict
from diagnose.records.header import Status
from diagnose.records.ranks import EnvironmentTrial, SizeResult

PROGRAM = "diagnose.measure.ranks.link.allreduce"
# A trial is ten seconds of work; one that hangs should not cost a minute.
TRIAL_SECONDS = 30.0
# Latency, a usual bucket, and a size at which bandwidth is judged.
TRIAL_SIZES = (2**10, 2**20, 25 * 2**20, 2**26)


@dataclass(frozen=True)
class Trial:
    """One change, and where it can have an effect."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    backend: str | None = None  # to change it
    acts_on: str = ""  # the backend that reads the variable; "" for any
    across_hosts: bool | None = None  # only across hosts, only within one; None for both


# In the order in which their results explain each other: first as it is, then what takes a path
# away, then what asks for one.
TRIALS: tuple[Trial, ...] = (
    Trial("as it is"),
    Trial("NCCL_P2P_DISABLE=1", {"NCCL_P2P_DISABLE": "1"}, acts_on="nccl"),
    Trial("NCCL_P2P_LEVEL=SYS", {"NCCL_P2P_LEVEL": "SYS"}, acts_on="nccl"),
    Trial("NCCL_SHM_DISABLE=1", {"NCCL_SHM_DISABLE": "1"}, acts_on="nccl"),
    Trial("NCCL_NVLS_ENABLE=0", {"NCCL_NVLS_ENABLE": "0"}, acts_on="nccl"),
    Trial("NCCL_IB_DISABLE=1", {"NCCL_IB_DISABLE": "1"}, acts_on="nccl", across_hosts=True),
    Trial(
        "GLOO_SOCKET_IFNAME=lo", {"GLOO_SOCKET_IFNAME": "lo"}, acts_on="gloo", across_hosts=False
    ),
    Trial("gloo instead of nccl", backend="gloo", acts_on="nccl"),
)


def explain_skip(trial: Trial, backend: str, nodes: int) -> str:
    """Why this trial says nothing here; empty if it does."""
    if trial.acts_on and trial.acts_on != backend:
        return f"not applicable: the ranks use {backend}, and this is a setting for {trial.acts_on}"
    if trial.across_hosts is not None and trial.across_hosts != (nodes > 1):
        return f"not applicable: it acts {'across' if trial.across_hosts else 'within'} hosts only"
    return ""


def try_settings(
    request: Mapping[str, Any],
    backend: str,
    nodes: int,
    timeout: float,
    begins: Callable[[str], None],
) -> Iterator[EnvironmentTrial]:
    """Every trial, one after the other; all ranks must walk through this together."""
    longest = request.get("max_bytes") or TRIAL_SIZES[-1]
    sizes = [nbytes for nbytes in TRIAL_SIZES if nbytes <= longest]
    for number, trial in enumerate(TRIALS):
        reason = explain_skip(trial, backend, nodes)
        if reason:
            yield EnvironmentTrial(trial.name, trial.variables, "skipped", reason)
            continue
        begins(trial.name)
        results: list[SizeResult] = []

        def hear(kind: str, content: Any, into: list[SizeResult] = results) -> None:
            if kind == "size":
                into.append(from_dict(SizeResult, content, "size"))

        outcome = supervise(
            PROGRAM,
            {**request, "sizes": sizes, "backend": trial.backend or request.get("backend")},
            hear,
            min(timeout, TRIAL_SECONDS),
            variables=trial.variables,
            attempt=f"trial {number}",
        )
        yield EnvironmentTrial(
            name=trial.name,
            variables=trial.variables,
            status=_status(outcome),
            reason=outcome.sentence,
            sizes=tuple(results),
        )
        if outcome.cause is not None and outcome.cause.kind in ("interrupted", "silent"):
            return


def _status(outcome: Outcome) -> Status:
    """Ranks that only waited for each other until the time-out have hung, whoever gave up first."""
    if outcome.cause is None:
        return "done"
    return "hung" if outcome.cause.kind in ("hung", "stopped", "lost peers") else "failed"
