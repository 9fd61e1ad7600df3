"""Is the right thing blamed for a slow link, and nothing that was not shown?"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from diagnose.analyze.link import surroundings, trials, verdict
from diagnose.analyze.link.bandwidth import measure_sizes
from diagnose.analyze.link.surroundings import read_variables
from diagnose.analyze.link.verdict import judge
from diagnose.records.header import Fact, Reading
from diagnose.records.ranks import BandwidthRecord, EnvironmentTrial, SizeResult
from tests.support.records.link import (
    bandwidth_record,
    field_report,
    golden_record,
    gpu_machine,
    gpu_record,
    kinds,
    rank,
    size_result,
    sizes,
    trial,
)

NO_MEMORY, NO_PEERS = {"NCCL_SHM_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1"}


@pytest.mark.parametrize(
    ("rate", "verdict"), [(23e9, "excluded"), (15e9, "cannot tell"), (4e9, "cause")]
)
def test_the_share_of_the_expected_rate_decides(rate: float, verdict: str) -> None:
    found = kinds(judge(gpu_record(rate)))["link_rate"]
    assert found.verdict == verdict
    assert "expected 24.0 GB/s" in found.evidence


def test_small_sizes_are_not_judged() -> None:
    record = gpu_record()
    small = replace(record, sizes=tuple(each for each in record.sizes if each.nbytes < 2**25))
    found = kinds(judge(small))["link_rate"]
    assert found.verdict == "cannot tell"
    assert "no size of 67.1 MB or more" in found.evidence


def test_a_network_is_judged_from_one_mebibyte() -> None:
    slow = [size_result(4**power, alpha=1e-4, rate=0.12e9) for power in range(5, 12)]
    unknown = kinds(judge(bandwidth_record(slow, nodes=2)))
    assert unknown["link_rate"].verdict == "cannot tell"
    assert "the largest tensor measured (4.19 MB)" in unknown["slow_link"].sentence
    given = bandwidth_record(slow, nodes=2, surroundings={"link_gbit": Fact("1")})
    assert kinds(judge(given))["link_rate"].verdict == "excluded"


def test_a_slow_network_tells_what_all_gradients_cost() -> None:
    sentence = kinds(judge(bandwidth_record(sizes(rate=0.125e9), nodes=2)))["slow_link"].sentence
    assert re.search(r"all gradients \(515 MB\) takes 4\d\d\d ms", sentence)
    # Too large for the run, they are estimated from the largest size.
    known = [each for each in sizes(rate=0.1e9) if each.nbytes < 3e8]
    whole = SizeResult(515_000_000, "all gradients", "skipped", "over the bound")
    sentence = kinds(judge(bandwidth_record([*known, whole], nodes=2)))["slow_link"].sentence
    assert re.search(r"all gradients \(515 MB\) would take about 5\d\d\d ms", sentence)


def test_a_fast_network_and_one_machine_are_no_slow_link() -> None:
    assert "slow_link" not in kinds(judge(bandwidth_record(sizes(rate=3e9), nodes=2)))
    assert "slow_link" not in kinds(judge(bandwidth_record(sizes(rate=0.1e9))))


def test_the_case_of_the_field_report() -> None:
    found = judge(field_report())
    assert (found[0].kind, found[0].verdict) == ("sockets", "cause")
    assert "NCCL_SHM_DISABLE=1 (the environment)" in found[0].evidence
    assert "eth0" in found[0].evidence
    told = kinds(found)
    assert (told["ib_disabled"].verdict, told["ib_disabled"].severity) == ("flag", "info")
    assert {"wsl2", "cross_numa"} <= set(told)
    assert told["link_rate"].verdict == "cause"
    # 200 MB in 390 ms: half of what the field report counts.
    assert measure_sizes(field_report())[-1].best.bus_rate == pytest.approx(0.513e9, rel=1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("environment", "peers", "kind"),
    [
        ({**NO_MEMORY, **NO_PEERS}, "OK", "sockets"),
        ({**NO_MEMORY, "NCCL_P2P_LEVEL": "LOC"}, "OK", "sockets"),
        (NO_MEMORY, "not supported", "sockets"),
        (NO_MEMORY, "OK", "shm_disabled"),
        (NO_PEERS, "OK", "p2p_disabled"),
        ({"NCCL_ALGO": "Tree"}, "OK", "variables"),
        ({"NCCL_SHM_DISABLE": "0"}, "OK", "variables"),
    ],
)
def test_settings_that_switch_a_way_off(environment: dict[str, str], peers: str, kind: str) -> None:
    found = judge(gpu_record(peers=Fact(peers), environment=environment))
    assert found[0].kind == kind
    others = {"sockets", "shm_disabled", "p2p_disabled"} - {kind}
    assert not others & set(kinds(found))


def test_who_is_left_with_sockets() -> None:
    # One rank on each host has only the network anyway.
    where = gpu_machine(environment={**NO_MEMORY, **NO_PEERS})
    assert "sockets" not in kinds(judge(bandwidth_record(nodes=2, backend="nccl", where=where)))
    # Under WSL2 no peer is in reach, whatever the driver says.
    assert judge(gpu_record(environment=NO_MEMORY, wsl2=True))[0].kind == "sockets"
    # Settings of NCCL do not matter to gloo.
    where = replace(bandwidth_record().header.machine, environment=NO_MEMORY, wsl2=True)
    found = kinds(judge(bandwidth_record(where=where)))
    assert "variables_unread" in found
    assert not {"sockets", "shm_disabled", "wsl2"} & set(found)


def test_a_file_sets_what_the_environment_does_not() -> None:
    conf = Fact("NCCL_SHM_DISABLE=1\nNCCL_P2P_DISABLE = 1 # hangs otherwise")
    record = bandwidth_record(
        backend="nccl",
        where=gpu_machine(environment={"NCCL_P2P_DISABLE": "0"}),
        surroundings={"/etc/nccl.conf": conf},
    )
    found = {name: (each.value, each.origin) for name, each in read_variables(record).items()}
    assert found == {
        "NCCL_P2P_DISABLE": ("0", "the environment"),
        "NCCL_SHM_DISABLE": ("1", "/etc/nccl.conf"),
    }


def test_infiniband_switched_off_between_hosts_is_a_cause() -> None:
    where = gpu_machine(environment={"NCCL_IB_DISABLE": "1"})
    record = bandwidth_record(nodes=2, backend="nccl", where=where)
    assert kinds(judge(record))["ib_disabled"].verdict == "cause"


def test_small_shared_memory_and_mixed_versions_are_flagged() -> None:
    record = gpu_record()
    where = replace(record.header.machine, shared_memory_bytes=Reading(64 * 2.0**20))
    ranks = (rank(0), replace(rank(1), torch_version="2.12.1"))
    found = kinds(judge(replace(record, header=replace(record.header, machine=where), ranks=ranks)))
    assert "67.1 MB free" in found["shared_memory"].evidence
    assert found["versions"].evidence == "2.12.1, 2.13.0"
    assert not {"shared_memory", "versions"} & set(kinds(judge(record)))


def test_a_rank_that_is_always_late_is_named_with_its_node() -> None:
    record = bandwidth_record(sizes(ranks=4, late=3), ranks=4, nodes=2)
    found = kinds(judge(record))["straggler"]
    assert found.sentence.startswith("Rank 3 on node 1 takes 1.6")
    assert "at 14 of 14 sizes" in found.evidence


@pytest.mark.parametrize(
    ("late", "is_named"),
    [
        ([1] * 3, True),
        ([1] * 2, False),  # too few sizes
        ([1] * 3 + [None] * 11, False),  # now and then
        ([0, 1] * 7, False),  # by turns
    ],
)
def test_when_a_late_rank_is_a_straggler(late: list[int | None], is_named: bool) -> None:
    measured = [size_result(4 ** (5 + place), late=who) for place, who in enumerate(late)]
    assert ("straggler" in kinds(judge(bandwidth_record(measured)))) == is_named


def test_times_that_scatter_widely_are_flagged() -> None:
    restless = replace(size_result(2**26), latency_seconds=((0.1, 0.2) * 5, (0.1, 0.1) * 5))
    found = kinds(judge(bandwidth_record([*sizes(), restless])))
    assert found["noisy"].evidence == "67.1 MB, one at a time: IQR is 67 % of the median"
    assert "noisy" not in kinds(judge(bandwidth_record()))


def test_the_overhead_of_the_clock_is_flagged_where_it_shows() -> None:
    record = bandwidth_record()
    shortest = next(each.best for each in measure_sizes(record) if each.size.nbytes == 2**26)
    assert shortest is not None
    limit = 0.01 * shortest.seconds.center
    assert "overhead" in kinds(judge(replace(record, overhead_seconds=1.01 * limit)))
    assert "overhead" not in kinds(judge(replace(record, overhead_seconds=0.99 * limit)))


AS_IT_IS = trial("as it is")
BROKEN, SLOW = trial("as it is", None, "hung", "10 s"), trial("as it is", 0.4e9)
TRIALS: list[tuple[EnvironmentTrial, EnvironmentTrial, str | None]] = [
    (BROKEN, trial("NCCL_P2P_DISABLE=1"), "trial_peers_broken"),
    (AS_IT_IS, trial("NCCL_P2P_DISABLE=1", 30e9), "trial_poor_switch"),
    (AS_IT_IS, trial("NCCL_P2P_DISABLE=1", None, "failed", "no space"), "trial_shared_memory"),
    (AS_IT_IS, trial("NCCL_SHM_DISABLE=1", 20e9), "trial_peers_in_use"),
    (AS_IT_IS, trial("NCCL_SHM_DISABLE=1", 1e9), "trial_memory_in_use"),
    (SLOW, trial("gloo", 1e9), "trial_gloo_faster"),
    (AS_IT_IS, trial("NCCL_P2P_LEVEL=SYS", 30e9), "trial_faster"),
    # Within what trials differ by anyway, or not run at all.
    (AS_IT_IS, trial("NCCL_P2P_DISABLE=1", 24e9), None),
    (AS_IT_IS, trial("NCCL_NVLS_ENABLE=0", 18e9), None),
    (AS_IT_IS, trial("NCCL_IB_DISABLE=1", None, "skipped", "there is one machine"), None),
]


@pytest.mark.parametrize(("first", "second", "kind"), TRIALS)
def test_what_a_trial_means(
    first: EnvironmentTrial, second: EnvironmentTrial, kind: str | None
) -> None:
    found = judge(gpu_record(trials=[first, second]))
    told = [each for each in found if each.kind.startswith("trial")]
    assert [each.kind for each in told] == [kind] * (kind is not None)
    assert all(second.name in each.evidence for each in told)


def test_without_shared_memory_before_the_trial_says_nothing_about_it() -> None:
    trials = [trial("as it is", 1e9), trial("NCCL_SHM_DISABLE=1", 1e9)]
    found = judge(gpu_record(1e9, environment={**NO_MEMORY, **NO_PEERS}, trials=trials))
    assert not [each for each in found if each.kind.startswith("trial")]


def no_line() -> BandwidthRecord:
    """A step between two sizes, as where a library changes its algorithm."""
    measured = [
        size_result(4**power, rate=0.5e9 if power < 10 else 0.05e9) for power in range(5, 15)
    ]
    return bandwidth_record(measured)


def test_every_rule_about_a_link_speaks_somewhere_and_is_silent_on_a_sound_one() -> None:
    ib_off, small = gpu_machine(environment={"NCCL_IB_DISABLE": "1"}), Reading(2.0**26)
    restless = replace(size_result(2**26), latency_seconds=((0.1, 0.2) * 5, (0.1, 0.1) * 5))
    sick = [
        field_report(),
        golden_record(),
        no_line(),
        replace(bandwidth_record([*sizes(), restless]), overhead_seconds=1.0, complete=False),
        replace(gpu_record(), ranks=(rank(0), replace(rank(1), torch_version="2.12.1"))),
        bandwidth_record(sizes(rate=0.1e9), nodes=2, backend="nccl", where=ib_off),
        bandwidth_record(where=replace(ib_off, shared_memory_bytes=small), backend="nccl"),
        bandwidth_record(where=replace(ib_off, environment=NO_MEMORY)),
        *(gpu_record(environment=each) for each in (NO_MEMORY, NO_PEERS, {"NCCL_ALGO": "Tree"})),
        *(gpu_record(trials=[first, second]) for first, second, _ in TRIALS),
    ]
    tables = (surroundings.RULES_OF_NCCL, surroundings.RULES_OF_ANY, trials.RULES, verdict.RULES)
    rules = {rule.kind for table in tables for rule in table}
    alone = {"corrupt", "link_rate", "slow_link", "straggler", "noisy", "culprit"}
    assert {each.kind for record in sick for each in judge(record)} == rules | alone
    told = [(each.kind, each.verdict) for each in judge(gpu_record(23e9))]
    assert told == [("link_rate", "excluded")]
