"""What do several ranks make of each other? Their ends, their meeting, their sums."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import DistNetworkError, HashStore  # type: ignore[attr-defined]

from diagnose.measure.machine.device import open_device
from diagnose.measure.ranks.job.ends import End, Outcome, complete
from diagnose.measure.ranks.job.member import choose_backend, describe_error, read_numa_node
from diagnose.measure.ranks.job.rendezvous import NoRendezvous, Place, Refusal, meet, read_place
from diagnose.measure.ranks.job.supervise import run_locally
from diagnose.measure.ranks.link.allreduce import (
    PERIOD,
    bound_sizes,
    count_wrong,
    fill,
    plan_sizes,
)
from diagnose.measure.ranks.link.surroundings import read_surroundings
from diagnose.measure.ranks.link.trials import PROGRAM, TRIALS, explain_skip
from diagnose.records.codec import from_dict
from diagnose.records.ranks import SizeResult
from tests.support.cli import ROOT
from tests.support.rank_jobs import FAULTS
from tests.support.records.parts import machine

KILLED = End(1, "failed", "was killed by SIGKILL", "all-reduce of 4096 bytes")
HUNG = End(0, "hung", "stopped answering", "step 2")
LOST = End(0, "lost peers", "lost the connection to another rank", "all-reduce of 4096 bytes")
REQUEST = {"device": "cpu", "effort": "smoke", "model_bytes": 2**20, "max_bytes": 2**16}


# --- who ended the job ---


@pytest.mark.parametrize(
    ("ends", "code", "sentence", "teller"),
    [
        ((End(0, "done"), End(1, "done")), 0, "", 0),
        # Who failed by itself is blamed, and not who lost it.
        (
            (LOST, KILLED, replace(LOST, rank=2)),
            3,
            "rank 1 was killed by SIGKILL during the all-reduce of 4096 bytes",
            0,
        ),
        # A stopped rank is blamed before one that waited.
        (
            (HUNG, replace(LOST, rank=1), End(2, "stopped", "was stopped by a signal", "step 2")),
            3,
            "rank 2 was stopped by a signal during the step 2",
            0,
        ),
        # Of a silent rank only the others know the place.
        (
            (End(1, "interrupted", "was interrupted", "step 2"),),
            3,
            "rank 0 cannot be reached any more (its host, its link or its supervising process is "
            "gone) during the step 2",
            1,
        ),
        ((End(0, "interrupted", "was interrupted", "x"), End(1, "done")), 130, "interrupted", 0),
        (
            (End(0, "refused", "no such backend; choose gloo"), replace(LOST, rank=1)),
            2,
            "no such backend; choose gloo",
            0,
        ),
    ],
)
def test_the_end_that_explains_the_others_is_told(
    ends: tuple[End, ...], code: int, sentence: str, teller: int
) -> None:
    outcome = complete(ends, world_size=max(2, len(ends)))
    assert (outcome.code, outcome.sentence, outcome.teller) == (code, sentence, teller)
    assert (outcome.culprit is not None) == (code == 3), "no rank is to blame for the others"


# --- where a process belongs ---


ENVIRONMENT = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_a_place_survives_its_environment() -> None:
    place = Place(3, 4, 1, 2, 1, 2, "node0", 29500, "1", True)
    assert read_place(place.as_environment()) == place


@pytest.mark.parametrize(
    ("given", "local_rank", "local_world_size", "node", "nodes"),
    [({}, 3, 4, 0, 1), ({"LOCAL_WORLD_SIZE": "2"}, 1, 2, 1, 2)],
)
def test_without_torchrun_the_host_is_counted_from_the_local_ranks(
    given: dict[str, str], local_rank: int, local_world_size: int, node: int, nodes: int
) -> None:
    place = read_place({**ENVIRONMENT, **given})
    assert (place.local_rank, place.local_world_size) == (local_rank, local_world_size)
    assert (place.node, place.nodes, place.has_store) == (node, nodes, False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"RANK": ""}, "no job to take part in: RANK not set"),
        ({"RANK": "4"}, "RANK=4 does not fit WORLD_SIZE=4; ranks go from 0 to 3"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number, not 'two'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999 is no port"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        read_place({**ENVIRONMENT, **change})


@pytest.mark.parametrize(
    ("world_size", "version", "sentence"),
    [
        (2, "2.13.0", ""),
        (2, "2.14.0", "mixed torch versions: rank 1 has 2.14.0, rank 0 has 2.13.0"),
        (3, "2.13.0", "rank 1 was started for 3, rank 0 for 2"),
    ],
)
def test_only_ranks_that_agree_meet(world_size: int, version: str, sentence: str) -> None:
    store = HashStore()
    with pytest.raises(NoRendezvous, match="only 1 of"):
        meet(store, 1, world_size, version, 0.05)  # posts its hello, and finds nobody
    with pytest.raises(NoRendezvous, match=sentence) if sentence else nullcontext():
        meet(store, 0, 2, "2.13.0", 10.0)


# --- what an exception means ---


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("[pair.cc:534] Connection closed by peer [10.0.0.1]:29"), "lost peers", ""),
        (RuntimeError("Timed out waiting 5000ms for recv"), "lost peers", "waited 7 s"),
        (DistNetworkError("Failed to recv, got 0 bytes"), "lost peers", "to the store of the job"),
        (MemoryError("no"), "failed", "ran out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "failed", "out of memory"),
        (RuntimeError("shapes differ"), "failed", "raised RuntimeError: shapes differ"),
        (ValueError("Timed out"), "failed", "raised ValueError"),
        (Refusal("choose gloo"), "refused", "choose gloo"),
        (ModuleNotFoundError("x", name="pywt.data"), "refused", "run pip install pywt, or"),
        (NoRendezvous("nobody came"), "no rendezvous", "nobody came"),
    ],
)
def test_an_error_says_whose_fault_it_is(error: Exception, kind: str, words: str) -> None:
    found, reason = describe_error(error, timeout_seconds=7)
    assert found == kind
    assert words in reason
    assert "10.0.0.1" not in reason


# --- sums that are exact ---


@given(
    elements=st.integers(1, 4 * PERIOD), world_size=st.integers(1, 5), where=st.integers(0, 10**6)
)
def test_every_wrong_element_is_counted(elements: int, world_size: int, where: int) -> None:
    total = sum_of_ranks(elements, world_size)
    assert count_wrong(total, world_size) == 0
    total[where % elements] += 1
    assert count_wrong(total, world_size) == 1


def test_a_chunk_in_the_wrong_place_is_seen() -> None:
    """A power of two of elements further on: what a ring that mixes up its chunks would do."""
    total = sum_of_ranks(2**21, 4)  # more rows than are compared at once
    for chunk in (2**6, 2**12, 2**19):
        first, second = total[:chunk].clone(), total[chunk : 2 * chunk].clone()
        total[:chunk], total[chunk : 2 * chunk] = second, first
        assert count_wrong(total, 4) > chunk
        total[:chunk], total[chunk : 2 * chunk] = first, second


def sum_of_ranks(elements: int, world_size: int) -> torch.Tensor:
    total = torch.zeros(elements)
    for rank in range(world_size):
        share = torch.full((elements,), torch.nan)
        fill(share, rank)
        total += share
    return total


# --- which sizes ---


@given(bound=st.integers(2**10, 2**31), model=st.integers(4, 2**31))
def test_a_plan_is_sorted_bounded_and_complete(bound: int, model: int) -> None:
    plan = plan_sizes(bound, model)
    sizes = [each.nbytes for each in plan]
    assert sizes == sorted(set(sizes))
    assert all(bool(each.skip_reason) == (each.nbytes > bound) for each in plan)
    assert all(each.nbytes % 4 == 0 for each in plan)
    purposes = ", ".join(each.purpose for each in plan)
    for name in ("4 MB of", "40 MB of", "200 MB of", "bucket of 25 MiB", "all gradients"):
        assert name in purposes
    swept = [each.nbytes for each in plan if "sweep" in each.purpose]
    assert swept == [4**power for power in range(5, 16) if 4**power <= bound]


def test_the_smallest_memory_of_all_ranks_bounds_the_sizes() -> None:
    assert bound_sizes([8e9, 4e6], max_bytes=2**28) == 10**6
    assert bound_sizes([8e12], max_bytes=2**40) == 2**30


# --- what lies around ---


def test_surroundings_show_settings_and_nothing_private(tmp_path: Path) -> None:
    files = {
        "etc/nccl.conf": "# a comment\nNCCL_P2P_DISABLE=1\nNCCL_HOSTID = secret-host\nOTHER=2\n",
        "sys/class/net/lo/operstate": "unknown\n",
        "sys/class/net/lo/type": "772\n",
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/type": "1\n",
        "sys/class/net/eth0/speed": "10000\n",
        "sys/class/net/eth0/device/vendor": "",
        "sys/class/net/eth1/operstate": "down\n",
        "sys/class/net/veth1/operstate": "up\n",
        "sys/class/net/veth1/type": "1\n",
        "sys/class/infiniband/mlx5_0/node_type": "",
        "dev/shm/file": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    variables = {"NCCL_SHM_DISABLE": "1", "GLOO_SOCKET_IFNAME": "/home/somebody"}
    found = read_surroundings(variables, machine(gpus=0), [], home=None, root=tmp_path)
    assert found["NCCL_SHM_DISABLE"].value == "1"
    assert found["NCCL_P2P_DISABLE"].reason == "not set"
    assert found["GLOO_SOCKET_IFNAME"].value == "(hidden)"
    assert found["nccl.conf"].value == "NCCL_HOSTID=(hidden), NCCL_P2P_DISABLE=1"
    assert found["interface"].value == "ethernet 10000 Mbit/s, loopback, virtual ethernet"
    assert found["infiniband"].value == "1 adapter(s)"
    assert found["/dev/shm"].value is not None
    assert found["wsl2"].value == "no"


def test_a_gpu_knows_its_numa_node(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    assert read_numa_node(False, "00000000:3B:00.0", tmp_path).value == 1
    (folder / "numa_node").write_text("-1\n")
    assert read_numa_node(False, "00000000:3B:00.0", tmp_path).value is None
    assert "may use every" in read_numa_node(True, None, tmp_path).reason


@pytest.mark.parametrize(
    ("backend", "nodes", "runs"),
    [
        ("gloo", 1, ["as it is", "GLOO_SOCKET_IFNAME=lo"]),
        ("gloo", 2, ["as it is"]),
        (
            "nccl",
            2,
            [
                "as it is",
                "NCCL_P2P_DISABLE=1",
                "NCCL_P2P_LEVEL=SYS",
                "NCCL_SHM_DISABLE=1",
                "NCCL_NVLS_ENABLE=0",
                "NCCL_IB_DISABLE=1",
                "gloo instead of nccl",
            ],
        ),
    ],
)
def test_only_what_can_act_is_tried(backend: str, nodes: int, runs: list[str]) -> None:
    assert [each.name for each in TRIALS if not explain_skip(each, backend, nodes)] == runs


# --- ranks of this host, without torchrun ---


def run_two(
    monkeypatch: pytest.MonkeyPatch, fault: str = "", **request: object
) -> tuple[Outcome, dict[str, list[Any]]]:
    heard: dict[str, list[Any]] = {}
    if fault:
        monkeypatch.setenv("FAULT", fault)
        monkeypatch.setenv("PYTHONPATH", str(FAULTS))

    def hear(kind: str, content: Any) -> None:
        heard.setdefault(kind, []).append(content)

    return run_locally(2, PROGRAM, {**REQUEST, **request}, hear, timeout=30), heard


def test_a_wrong_sum_is_no_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, heard = run_two(monkeypatch, fault="corrupt 1 4096", sizes=[1024, 4096, 16384])
    assert outcome.code == 0
    right, broken, last = (from_dict(SizeResult, each, "size") for each in heard["size"])
    assert (right.status, last.status) == ("done", "done")
    assert broken.status == "invalid"
    assert broken.reason == "CORRUPT: 1 of 2048 sums were wrong before the timing, on rank 1"
    assert broken.wrong_before == 1
    assert broken.latency_seconds == ()


def test_a_backend_that_cannot_work_is_refused() -> None:
    cpu = open_device("cpu")
    assert choose_backend(None, cpu) == "gloo"
    with pytest.raises(Refusal, match="moves CUDA tensors only"):
        choose_backend("nccl", cpu)
    with pytest.raises(Refusal, match=r"'carrier-pigeon' is not available .* --backend gloo"):
        choose_backend("carrier-pigeon", cpu)


def test_the_supervising_side_loads_no_torch() -> None:
    code = (
        "import sys; from diagnose.measure.ranks.job import supervise; "
        "from diagnose.measure.ranks.link import surroundings, trials; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
