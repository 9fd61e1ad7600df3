"""Is the right thing blamed for a slow link, and nothing that was not shown?"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from diagnose.analyze.link.bandwidth import find_straggler, measure_sizes
from diagnose.analyze.link.surroundings import read_variables
from diagnose.analyze.link.verdict import judge
from diagnose.records.header import Fact, Reading
from diagnose.records.ranks import EnvironmentTrial, SizeResult
from diagnose.render.link.report import answer, print_table, render_bandwidth
from tests.support.records.link import (
    bandwidth_record,
    field_report,
    gpu_machine,
    gpu_record,
    kinds,
    rank,
    size_result,
    sizes,
    trial,
)


@pytest.mark.parametrize(
    ("rate", "verdict", "words"),
    [(23e9, "excluded", "fine"), (15e9, "cannot tell", "look"), (4e9, "cause", "slow")],
)
def test_the_share_of_the_expected_rate_decides(rate: float, verdict: str, words: str) -> None:
    found = kinds(judge(gpu_record(rate)))["link_rate"]
    assert found.verdict == verdict
    assert words in found.sentence
    assert "expected 24.0 GB/s" in found.evidence


def test_small_sizes_are_not_judged() -> None:
    record = gpu_record()
    small = replace(record, sizes=tuple(each for each in record.sizes if each.nbytes < 2**25))
    found = kinds(judge(small))["link_rate"]
    assert found.verdict == "cannot tell"
    assert "no size of 67.1 MB or more" in found.evidence
    assert "% of the" not in answer(small)


def test_a_network_is_judged_from_one_mebibyte() -> None:
    slow = [size_result(4**power, alpha=1e-4, rate=0.12e9) for power in range(5, 12)]
    record = bandwidth_record(slow, nodes=2)
    unknown = kinds(judge(record))
    assert unknown["link_rate"].verdict == "cannot tell"
    assert "Slow link" in unknown["slow_link"].sentence
    assert (
        "one all-reduce of the largest tensor measured (4.19 MB)" in unknown["slow_link"].sentence
    )
    given_rate = kinds(judge(record, 0.125e9))
    assert given_rate["link_rate"].verdict == "excluded"
    assert "the rate given with --link-gbit" in given_rate["link_rate"].evidence


def test_a_slow_network_tells_what_all_gradients_cost() -> None:
    sentence = kinds(judge(bandwidth_record(sizes(rate=0.125e9), nodes=2)))["slow_link"].sentence
    assert re.search(r"all gradients \(515 MB\) takes 4\d\d\d ms", sentence)
    assert "a slow link" in answer(bandwidth_record(sizes(rate=0.125e9), nodes=2))


def test_gradients_too_large_for_the_run_are_estimated() -> None:
    known = [each for each in sizes(rate=0.1e9) if each.nbytes < 3e8]
    whole = SizeResult(515_000_000, "all gradients", "skipped", "over the bound")
    sentence = kinds(judge(bandwidth_record([*known, whole], nodes=2)))["slow_link"].sentence
    assert re.search(r"all gradients \(515 MB\) would take about 5\d\d\d ms", sentence)


def test_a_fast_network_and_one_machine_are_no_slow_link() -> None:
    assert "slow_link" not in kinds(judge(bandwidth_record(sizes(rate=3e9), nodes=2)))
    assert "slow_link" not in kinds(judge(bandwidth_record(sizes(rate=0.1e9))))


def test_gloo_on_one_machine_is_not_judged() -> None:
    found = kinds(judge(bandwidth_record()))["link_rate"]
    assert found.verdict == "cannot tell"
    assert "no published expectation for gloo" in found.evidence


def test_the_case_of_the_field_report() -> None:
    record = field_report()
    found = judge(record)
    assert found[0].kind == "sockets"
    assert found[0].verdict == "cause"
    assert "NCCL_SHM_DISABLE=1 (the environment)" in found[0].evidence
    assert "eth0" in found[0].evidence
    assert found[0].advice.startswith("Unset NCCL_SHM_DISABLE and measure")
    told = kinds(found)
    assert "no effect within one machine" in told["ib_disabled"].sentence
    assert {"wsl2", "cross_numa"} <= set(told)
    assert told["link_rate"].verdict == "cause"
    assert "talk over network sockets" in answer(record)
    # 2 * 200 MB / 390 ms, and half of that as nccl-tests counts.
    row = next(line for line in print_table(record).split("\n") if line.startswith("200 MB"))
    assert row.split()[-4:-1] == ["0.513", "0.513", "1.03"]


@pytest.mark.parametrize(
    ("environment", "peers", "kind"),
    [
        ({"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}, "OK", "sockets"),
        ({"NCCL_SHM_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC"}, "OK", "sockets"),
        ({"NCCL_SHM_DISABLE": "1"}, "not supported", "sockets"),
        ({"NCCL_SHM_DISABLE": "1"}, "OK", "shm_disabled"),
        ({"NCCL_P2P_DISABLE": "1"}, "OK", "p2p_disabled"),
        ({"NCCL_ALGO": "Tree"}, "OK", "variables"),
        ({"NCCL_SHM_DISABLE": "0"}, "OK", "variables"),
    ],
)
def test_settings_that_switch_a_way_off(environment: dict[str, str], peers: str, kind: str) -> None:
    found = judge(gpu_record(peers=Fact(peers), environment=environment))
    assert found[0].kind == kind
    others = {"sockets", "shm_disabled", "p2p_disabled"} - {kind}
    assert not others & set(kinds(found))


def test_one_rank_on_each_host_has_only_the_network_anyway() -> None:
    where = gpu_machine(environment={"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"})
    record = bandwidth_record(nodes=2, backend="nccl", where=where)
    assert "sockets" not in kinds(judge(record))


def test_under_wsl2_no_peer_is_in_reach_whatever_the_driver_says() -> None:
    environment = {"NCCL_SHM_DISABLE": "1"}
    assert judge(gpu_record(environment=environment, wsl2=True))[0].kind == "sockets"


def test_without_shared_memory_before_the_trial_says_nothing_about_it() -> None:
    environment = {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
    trials = [trial("as it is", 1e9), trial("NCCL_SHM_DISABLE=1", 1e9)]
    found = judge(gpu_record(1e9, environment=environment, trials=trials))
    assert not [each for each in found if each.kind.startswith("trial")]


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
    assert "NCCL_SHM_DISABLE=1 (/etc/nccl.conf)" in judge(record)[0].evidence


def test_settings_of_nccl_do_not_matter_to_gloo() -> None:
    where = replace(
        bandwidth_record().header.machine, environment={"NCCL_SHM_DISABLE": "1"}, wsl2=True
    )
    found = kinds(judge(bandwidth_record(where=where)))
    assert "use gloo" in found["variables_unread"].sentence
    assert not {"sockets", "shm_disabled", "wsl2"} & set(found)


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


def test_a_rank_that_is_late_now_and_then_is_no_straggler() -> None:
    late = [
        each if place < 3 else size_result(each.nbytes) for place, each in enumerate(sizes(late=1))
    ]
    record = bandwidth_record(late)
    assert find_straggler(measure_sizes(record), record.ranks) is None
    turns = [size_result(each.nbytes, late=place % 2) for place, each in enumerate(sizes())]
    assert find_straggler(measure_sizes(bandwidth_record(turns)), record.ranks) is None


def test_two_sizes_are_too_few_for_a_straggler() -> None:
    late = [size_result(each.nbytes, late=1) for each in sizes()]
    record = bandwidth_record()
    assert find_straggler(measure_sizes(bandwidth_record(late[:2])), record.ranks) is None
    assert find_straggler(measure_sizes(bandwidth_record(late[:3])), record.ranks) is not None


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


@pytest.mark.parametrize(
    ("trials", "kind", "words"),
    [
        (
            [trial("as it is", None, "hung", "10 s"), trial("NCCL_P2P_DISABLE=1")],
            "trial_peers_broken",
            "ACSCtl",
        ),
        (
            [trial("as it is"), trial("NCCL_P2P_DISABLE=1", 30e9)],
            "trial_poor_switch",
            "NCCL_P2P_DISABLE=1",
        ),
        (
            [trial("as it is"), trial("NCCL_P2P_DISABLE=1", None, "failed", "no space")],
            "trial_shared_memory",
            "--shm-size",
        ),
        ([trial("as it is"), trial("NCCL_SHM_DISABLE=1", 20e9)], "trial_peers_in_use", ""),
        ([trial("as it is"), trial("NCCL_SHM_DISABLE=1", 1e9)], "trial_memory_in_use", "Never"),
        ([trial("as it is", 0.4e9), trial("gloo", 1e9)], "trial_gloo_faster", "NCCL_DEBUG"),
        (
            [trial("as it is"), trial("NCCL_P2P_LEVEL=SYS", 30e9)],
            "trial_faster",
            "NCCL_P2P_LEVEL=SYS",
        ),
    ],
)
def test_what_a_trial_means(trials: list[EnvironmentTrial], kind: str, words: str) -> None:
    record = gpu_record(trials=trials)
    found = [each for each in judge(record) if each.kind.startswith("trial")]
    assert [each.kind for each in found] == [kind]
    assert words in found[0].advice


def test_trials_that_hardly_differ_mean_nothing() -> None:
    trials = [
        trial("as it is"),
        trial("NCCL_P2P_DISABLE=1", 24e9),
        trial("NCCL_NVLS_ENABLE=0", 18e9),
        trial("NCCL_IB_DISABLE=1", None, "skipped", "there is one machine"),
    ]
    assert not [each for each in judge(gpu_record(trials=trials)) if each.kind.startswith("trial")]
    text = render_bandwidth(gpu_record(trials=trials))
    assert "| NCCL\\_IB\\_DISABLE=1 | skipped¹ |" in text
    assert "¹ there is one machine" in text
