"""Does the table give the rate of the link that the ranks really use, or say why not?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.link.expected import (
    GIVEN_LINK,
    JUDGED_FROM_BYTES,
    JUDGED_FROM_BYTES_ON_NETWORK,
    NVLINKS,
    PCIE,
    SOCKETS,
    expect,
    farthest_link,
)
from diagnose.records.header import Fact, Link, Reading
from diagnose.records.ranks import BandwidthRecord
from tests.support.records.link import bandwidth_record, gpu_record
from tests.support.records.parts import gpu

EPYC = "AMD EPYC 7763 64-Core Processor"


def with_cards(
    record: BandwidthRecord,
    generation: float = 4.0,
    width: float = 16.0,
    capability: str = "8.9",
    processor: str = EPYC,
) -> BandwidthRecord:
    card = replace(
        gpu(),
        pcie_generation_max=Reading(generation),
        pcie_generation=Reading(1.0),
        pcie_width=Reading(width),
        pcie_width_max=Reading(width),
        compute_capability=Fact(capability),
    )
    where = replace(record.header.machine, gpus=(card, card), cpu_model=Fact(processor))
    return replace(record, header=replace(record.header, machine=where))


@pytest.mark.parametrize(
    ("kind", "generation", "width", "processor", "gigabytes"),
    [
        ("PIX", 4, 16, EPYC, 24),
        # An idle card shows generation 1; what it can do counts.
        ("PXB", 5, 16, EPYC, 48),
        ("PHB", 3, 16, EPYC, 12),
        ("PIX", 4, 8, EPYC, 12),
        ("PHB", 4, 16, "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", 20),
        ("PIX", 4, 16, "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", 24),
        ("SYS", 4, 16, EPYC, 16),
        ("SYS", 3, 16, EPYC, 12),
        ("SYS", 5, 16, "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", 6),
        ("SYS", 5, 16, "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", 10),
        ("SYS", 5, 16, "Intel(R) Xeon(R) Platinum 8480+", 22),
        ("SYS", 6, 16, "INTEL(R) XEON(R) PLATINUM 8568Y+", 40),
        ("SYS", 6, 16, "Intel(R) Xeon(R) 6980P", 40),
        ("SYS", 5, 16, "Neoverse-N1", 6),
    ],
)
def test_pcie_by_generation_width_and_processor(
    kind: str, generation: float, width: float, processor: str, gigabytes: float
) -> None:
    record = with_cards(gpu_record(kind=kind), generation, width, processor=processor)
    found = expect(record)
    assert found.bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert found.judged_from_bytes == JUDGED_FROM_BYTES == 64 * 2**20
    assert f"gen {generation}" in found.link
    assert "NCCL" in found.source


@pytest.mark.parametrize(
    ("capability", "gigabytes"), [("7.0", 120), ("8.0", 240), ("9.0", 371), ("10.0", 722)]
)
def test_nvlink_by_compute_capability(capability: str, gigabytes: float) -> None:
    found = expect(with_cards(gpu_record(kind="NVLINK"), capability=capability))
    assert found.bytes_per_second == gigabytes * 1e9


def test_nvlink_is_not_expected_under_wsl2() -> None:
    found = expect(with_cards(gpu_record(kind="NVLINK", wsl2=True), capability="9.0"))
    assert found.bytes_per_second == 24e9
    assert "without WSL2" in found.reservation


def test_the_slowest_pair_decides_and_only_cards_in_use_count() -> None:
    record = gpu_record()
    cards = (gpu(),) * 3
    near, far = Link(0, 1, Fact("PIX"), Fact("OK")), Link(0, 2, Fact("SYS"), Fact("OK"))
    unread = Link(1, 2, Fact(None, "no permission"), Fact("OK"))
    links = (near, far, unread)
    record = replace(
        record,
        header=replace(
            record.header, machine=replace(record.header.machine, gpus=cards, links=links)
        ),
    )
    assert farthest_link(record) == near
    three = bandwidth_record(ranks=3, backend="nccl", where=record.header.machine)
    assert farthest_link(three) == far


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (bandwidth_record(), "no published expectation for gloo"),
        (bandwidth_record(ranks=1), "one rank alone"),
        (bandwidth_record(nodes=2), "give it with --link-gbit"),
        (with_cards(gpu_record(kind="NVLINK"), capability="8.9"), "no NVLink of compute"),
        (with_cards(gpu_record(), generation=9.0), "no PCIe gen 9 x16"),
        (with_cards(gpu_record(kind="SYS"), processor="Loongson"), "does not know the processor"),
        (
            replace(
                gpu_record(),
                header=replace(
                    gpu_record().header, machine=replace(gpu_record().header.machine, links=())
                ),
            ),
            "could not be read",
        ),
    ],
)
def test_without_a_row_the_reason_is_told(record: BandwidthRecord, reason: str) -> None:
    found = expect(record)
    assert found.bytes_per_second is None
    assert reason in found.source


def test_what_the_user_says_of_the_network_comes_first() -> None:
    record = bandwidth_record(nodes=2, surroundings={GIVEN_LINK: Fact("1")})
    assert expect(record).bytes_per_second == 0.125e9
    assert expect(record).judged_from_bytes == JUDGED_FROM_BYTES_ON_NETWORK
    assert expect(record, 25e6).bytes_per_second == 25e6
    assert expect(gpu_record(), 25e6).bytes_per_second == 25e6


@pytest.mark.parametrize("said", ["fast", "0", "-1", "inf", "nan", ""])
def test_a_rate_that_is_none_is_not_used(said: str) -> None:
    record = bandwidth_record(nodes=2, surroundings={GIVEN_LINK: Fact(said)})
    assert expect(record).bytes_per_second is None


def test_every_row_has_a_source_and_stays_below_its_data_sheet() -> None:
    rows = [*NVLINKS.values(), *PCIE.values(), *(row for _, row in SOCKETS)]
    for row in rows:
        assert row.source
        sheet = row.data_sheet_bytes_per_second
        assert sheet is None or row.bytes_per_second < sheet
