"""What bandwidth should this link give? A table with sources, and the row that fits the machine.

The figures are those by which NCCL itself ranks its links: one way, in bytes per second, below
the data sheet because a link also carries headers. Bus bandwidth is compared with them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze.units import pcie_link
from diagnose.records.header import Gpu, Link
from diagnose.records.ranks import BandwidthRecord

# Below, the start of a transfer still shows on a fast link.
JUDGED_FROM_BYTES = 64 * 2**20
# A network is slow enough that a smaller transfer already fills it.
JUDGED_FROM_BYTES_ON_NETWORK = 2**20

# The entry writes the rate that the user gave for the network here, in Gbit/s.
GIVEN_LINK = "link_gbit"

_NCCL = "NCCL's link model, src/graph/topo.h at 5067397"
_MEASURED = "measured busbw in stas00/ml-engineering at 744d01e"
_PEER_OVERHEAD_INTEL = 1.2  # NCCL counts six bytes for five that peers send through an Intel CPU


@dataclass(frozen=True)
class KnownLink:
    """One row of the table."""

    name: str
    bytes_per_second: float
    data_sheet_bytes_per_second: float | None
    source: str

    def cite(self) -> str:
        sheet = self.data_sheet_bytes_per_second
        return self.source if sheet is None else f"{self.source}; data sheet {sheet / 1e9:g} GB/s"


NVLINKS = {  # by compute capability of the GPUs that it joins
    "7.0": KnownLink("NVLink 2, 6 links", 120e9, 150e9, _NCCL),
    "8.0": KnownLink("NVLink 3, 12 links", 240e9, 300e9, f"{_NCCL}; {_MEASURED}: 235 GB/s"),
    "8.6": KnownLink("NVLink 3 bridge, 4 links", 48e9, 56e9, _NCCL),
    "9.0": KnownLink(
        "NVLink 4, 18 links",
        371e9,
        450e9,
        f"{_NCCL}; {_MEASURED}: 363 to 367 GB/s as a ring, 473 to 482 GB/s where the switch adds",
    ),
    "10.0": KnownLink(
        "NVLink 5, 18 links",
        722e9,
        900e9,
        f"{_NCCL}; {_MEASURED}: 673 to 682 GB/s as a ring, 838 to 846 GB/s where the switch adds",
    ),
}
PCIE = {  # by generation, for 16 lanes
    3: KnownLink("PCIe gen 3 x16", 12e9, 16e9, _NCCL),
    4: KnownLink(
        "PCIe gen 4 x16",
        24e9,
        31e9,
        f"{_NCCL}; four RTX 4090 measured 18 GB/s through shared memory and 22 GB/s directly "
        "(NVIDIA/nccl#1603)",
    ),
    5: KnownLink("PCIe gen 5 x16", 48e9, 63e9, _NCCL),
    6: KnownLink("PCIe gen 6 x16", 96e9, 121e9, _NCCL),
}
_FULL_WIDTH = 16
# Between the sockets of a machine, by processor; the first pattern that fits decides.
SOCKETS = (
    (r"AMD", KnownLink("AMD sockets", 16e9, None, _NCCL)),
    # The second digit of a Xeon's number is its generation; the sixth has a letter behind.
    (
        r"Xeon.* (?:[3-9]5\d\d|6[79]\d\d[PE])",
        KnownLink("sockets of Xeon generation 5 or 6", 40e9, None, _NCCL),
    ),
    (r"Xeon.* [3-9]4\d\d", KnownLink("sockets of Xeon generation 4", 22e9, None, _NCCL)),
    (
        r"Xeon.* [3-9][123]\d\d",
        KnownLink("sockets of Xeon generation 1 to 3", 10e9, None, _NCCL),
    ),
    (r"Intel|Xeon", KnownLink("Intel sockets of unknown age", 6e9, None, _NCCL)),
    (r"ARM|Neoverse|Grace", KnownLink("ARM sockets", 6e9, None, _NCCL)),
)
# How far apart two GPUs are, nearest first, as nvidia-smi's topology matrix names it.
DISTANCES = ("NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS")
_THROUGH_CPU = ("PHB", "NODE", "SYS")
_INTEL = re.compile(r"Intel|Xeon", re.IGNORECASE)


@dataclass(frozen=True)
class Expectation:
    """What the link should give, or why that is unknown."""

    link: str
    bytes_per_second: float | None
    source: str  # of the figure; without one, the reason
    judged_from_bytes: int
    reservation: str = ""


def expect(record: BandwidthRecord, given_bytes_per_second: float | None = None) -> Expectation:
    """The user's figure before the table's: only the user knows what the network was sold as."""
    given = given_bytes_per_second or read_given_rate(record)
    if len(record.ranks) < 2:
        return _unknown("no link", "one rank alone sends nothing", JUDGED_FROM_BYTES)
    if given is not None:
        source = "the rate given with --link-gbit"
        return Expectation("the link", given, source, JUDGED_FROM_BYTES_ON_NETWORK)
    if record.nodes > 1:
        reason = "the nominal rate of the network is unknown; give it with --link-gbit"
        return _unknown("the network", reason, JUDGED_FROM_BYTES_ON_NETWORK)
    if record.backend != "nccl":
        reason = f"there is no published expectation for {record.backend} within one machine"
        return _unknown(record.backend, reason, JUDGED_FROM_BYTES)
    return _expect_between_gpus(record)


def read_given_rate(record: BandwidthRecord) -> float | None:
    """Bytes per second, from what the user said in Gbit/s."""
    fact = record.surroundings.get(GIVEN_LINK)
    try:
        gbit = float(fact.value) if fact is not None and fact.value is not None else 0.0
    except ValueError:
        return None
    return gbit * 1e9 / 8 if 0 < gbit < float("inf") else None


def used_links(record: BandwidthRecord) -> list[Link]:
    """Links between the GPUs of the ranks of the first host: the record describes that host."""
    local = {rank.local_rank for rank in record.ranks if rank.node == 0}
    used = local & set(range(len(record.header.machine.gpus)))
    return [link for link in record.header.machine.links if {link.first, link.second} <= used]


def farthest_link(record: BandwidthRecord) -> Link | None:
    """The ring is as fast as its slowest pair."""
    known = [link for link in used_links(record) if link.kind.value in DISTANCES]
    return max(known, key=lambda link: DISTANCES.index(str(link.kind.value)), default=None)


def _expect_between_gpus(record: BandwidthRecord) -> Expectation:
    link = farthest_link(record)
    if link is None:
        reason = "how the GPUs are connected could not be read"
        return _unknown("the link between the GPUs", reason, JUDGED_FROM_BYTES)
    pair = [record.header.machine.gpus[index] for index in (link.first, link.second)]
    # Under WSL2 NVLink is not usable, whatever the topology says.
    if link.kind.value == "NVLINK" and not record.header.machine.wsl2:
        return _expect_nvlink(pair[0])
    return _expect_pcie(record, pair, str(link.kind.value))


def _expect_nvlink(gpu: Gpu) -> Expectation:
    known = NVLINKS.get(gpu.compute_capability.value or "")
    if known is None:
        reason = f"the table has no NVLink of compute capability {gpu.compute_capability.value}"
        return _unknown("NVLink", reason, JUDGED_FROM_BYTES)
    return Expectation(known.name, known.bytes_per_second, known.cite(), JUDGED_FROM_BYTES)


def _expect_pcie(record: BandwidthRecord, gpus: Sequence[Gpu], kind: str) -> Expectation:
    generation = _lowest(
        [_best(gpu.pcie_generation.value, gpu.pcie_generation_max.value) for gpu in gpus]
    )
    width = _lowest([_best(gpu.pcie_width.value, gpu.pcie_width_max.value) for gpu in gpus])
    known = PCIE.get(int(generation or 0))
    if known is None or not width:
        reason = f"the table has no PCIe {pcie_link(generation, width)}"
        return _unknown("PCIe", reason, JUDGED_FROM_BYTES)
    name = f"PCIe {pcie_link(generation, width)} ({kind})"
    rate, source = known.bytes_per_second * width / _FULL_WIDTH, known.cite()
    if width != _FULL_WIDTH:
        source += f" for {known.name}"
    processor = record.header.machine.cpu_model.value or ""
    if kind in _THROUGH_CPU and _INTEL.search(processor):
        rate /= _PEER_OVERHEAD_INTEL
    if kind == "SYS":
        sockets = _find_sockets(processor)
        if sockets is None:
            reason = "the GPUs are on different sockets and the table does not know the processor"
            return _unknown(name, reason, JUDGED_FROM_BYTES)
        if sockets.bytes_per_second < rate:
            name, rate = f"{name} across {sockets.name}", sockets.bytes_per_second
            source = sockets.cite()
    reservation = ""
    if record.header.machine.wsl2:
        reservation = "this is the figure without WSL2, for which no reliable one is published"
    return Expectation(name, rate, source, JUDGED_FROM_BYTES, reservation)


def _find_sockets(processor: str) -> KnownLink | None:
    fits = (each for pattern, each in SOCKETS if re.search(pattern, processor, re.IGNORECASE))
    return next(fits, None)


def _unknown(link: str, reason: str, judged_from_bytes: int) -> Expectation:
    return Expectation(link, None, reason, judged_from_bytes)


def _best(now: float | None, highest: float | None) -> float | None:
    """What GPU and board allow; an idle link shows a lower generation by itself."""
    return max((value for value in (now, highest) if value is not None), default=None)


def _lowest(values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
