"""Does the table give the rate of the link that the ranks really use, or say why not?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.link.expected import GIVEN_LINK, expect, farthest_link
from diagnose.analyze.links import CLUSTERS, LINK_NAMES, NVLINKS, PCIE, SOCKETS, find_cluster
from diagnose.records.header import Fact, Link, Reading
from diagnose.records.ranks import BandwidthRecord
from tests.support.records.link import bandwidth_record, gpu_record
from tests.support.records.parts import gpu

EPYC = "AMD EPYC 7763 64-Core Processor"
XEON = "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz"


def with_cards(
    kind: str,
    generation: float = 4.0,
    width: float = 16.0,
    name: str = "NVIDIA GeForce RTX 4090",
    processor: str = EPYC,
    wsl2: bool = False,
) -> BandwidthRecord:
    # An idle card shows generation 1; what it can do counts.
    card = replace(
        gpu(),
        name=name,
        pcie_generation_max=Reading(generation),
        pcie_generation=Reading(1.0),
        pcie_width=Reading(width),
        pcie_width_max=Reading(width),
    )
    record = gpu_record(kind=kind, wsl2=wsl2)
    where = replace(record.header.machine, gpus=(card, card), cpu_model=Fact(processor))
    return replace(record, header=replace(record.header, machine=where))


@pytest.mark.parametrize(
    ("kind", "generation", "width", "processor", "gigabytes"),
    [
        ("PIX", 4, 16, EPYC, 24),
        ("PXB", 5, 16, EPYC, 48),
        ("PHB", 3, 16, EPYC, 12),
        ("PIX", 4, 8, EPYC, 12),
        ("PHB", 4, 16, XEON, 20),
        ("PIX", 4, 16, XEON, 24),
        ("SYS", 4, 16, EPYC, 16),
        ("SYS", 3, 16, EPYC, 12),
        ("SYS", 5, 16, "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", 6),
        ("SYS", 5, 16, XEON, 10),
        ("SYS", 5, 16, "Intel(R) Xeon(R) Platinum 8480+", 22),
        ("SYS", 6, 16, "INTEL(R) XEON(R) PLATINUM 8568Y+", 40),
        ("SYS", 6, 16, "Intel(R) Xeon(R) 6980P", 40),
        ("SYS", 5, 16, "Neoverse-N1", 6),
    ],
)
def test_pcie_by_generation_width_and_processor(
    kind: str, generation: float, width: float, processor: str, gigabytes: float
) -> None:
    found = expect(with_cards(kind, generation, width, processor=processor))
    assert found.bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert found.judged_from_bytes == 64 * 2**20
    assert f"gen {generation}" in found.link


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("Tesla V100-SXM2-32GB", 120),
        ("NVIDIA A100-SXM4-80GB", 240),
        ("NVIDIA A800-SXM4-80GB", 160),
        ("NVIDIA GeForce RTX 3090", 48),
        ("NVIDIA RTX A6000", 48),
        ("NVIDIA H100 80GB HBM3", 370.8),
        ("NVIDIA H100 NVL", 247.2),
        # The same compute capability as an H100, with 8 links instead of 18.
        ("NVIDIA H800", 164.8),
        ("NVIDIA H20", 370.8),
        ("NVIDIA H200", 370.8),
        ("NVIDIA B200", 721.8),
        ("NVIDIA Z900", None),
    ],
)
def test_nvlinks_are_counted_by_the_cards_name(name: str, gigabytes: float | None) -> None:
    found = expect(with_cards("NVLINK", name=name))
    assert found.bytes_per_second == (None if gigabytes is None else pytest.approx(gigabytes * 1e9))


def test_nvlink_is_not_expected_under_wsl2() -> None:
    found = expect(with_cards("NVLINK", name="NVIDIA H100 80GB HBM3", wsl2=True))
    assert found.bytes_per_second == 24e9
    assert "without WSL2" in found.reservation


def test_the_slowest_pair_decides_and_only_cards_in_use_count() -> None:
    near, far = Link(0, 1, Fact("PIX"), Fact("OK")), Link(0, 2, Fact("SYS"), Fact("OK"))
    unread = Link(1, 2, Fact(None, "no permission"), Fact("OK"))
    where = gpu_record().header.machine
    where = replace(where, gpus=(gpu(),) * 3, links=(near, far, unread))
    assert farthest_link(bandwidth_record(ranks=2, backend="nccl", where=where)) == near
    assert farthest_link(bandwidth_record(ranks=3, backend="nccl", where=where)) == far


def without_links() -> BandwidthRecord:
    where = replace(gpu_record().header.machine, links=())
    return bandwidth_record(backend="nccl", where=where)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (bandwidth_record(), "no published expectation for gloo"),
        (bandwidth_record(ranks=1), "one rank alone"),
        (bandwidth_record(nodes=2), "give it with --link-gbit"),
        (with_cards("NVLINK"), "how many NVLinks a card named NVIDIA GeForce RTX 4090 has"),
        (with_cards("PHB", generation=9.0), "no PCIe gen 9 x16"),
        (with_cards("SYS", processor="Loongson"), "does not know the processor"),
        (without_links(), "could not be read"),
    ],
)
def test_without_a_row_the_reason_is_told(record: BandwidthRecord, reason: str) -> None:
    found = expect(record)
    assert found.bytes_per_second is None
    assert reason in found.source


@pytest.mark.parametrize(
    ("said", "rate"),
    [("1", 0.125e9), *((said, None) for said in ("fast", "0", "-1", "inf", "nan", ""))],
)
def test_what_the_user_says_of_the_network_comes_first(said: str, rate: float | None) -> None:
    found = expect(bandwidth_record(nodes=2, surroundings={GIVEN_LINK: Fact(said)}))
    assert found.bytes_per_second == rate
    assert found.judged_from_bytes == 2**20


def test_every_row_has_a_source_and_stays_below_its_data_sheet() -> None:
    clusters = [link for each in CLUSTERS.values() for link in (each.inside, each.between) if link]
    for row in [*PCIE.values(), *clusters, *(row for _, row in (*NVLINKS, *SOCKETS))]:
        assert "NCCL" in row.source
        sheet = row.data_sheet_bytes_per_second
        assert sheet is None or row.bytes_per_second < sheet


def test_nvlink_is_faster_than_pcie_and_an_unknown_link_names_the_known() -> None:
    rate = {name: each.inside.bytes_per_second for name, each in CLUSTERS.items()}
    assert rate["nvlink5"] > rate["nvlink4"] > rate["nvlink3"] > rate["pcie5"] > rate["pcie4"]
    assert rate["ib400"] == 4 * rate["ib100"]
    assert len(set(LINK_NAMES)) == 13
    with pytest.raises(ValueError, match="no link 'token-ring'; there are measured, nvlink3"):
        find_cluster("token-ring")
