"""What bandwidth should this link give? The row of the table that fits the machine, or why none.

Bus bandwidth is compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from diagnose.analyze.links import FULL_WIDTH, NVLINKS, PCIE, SOCKETS, find_link
from diagnose.analyze.units import pcie_link
from diagnose.records.header import Gpu, Link, Reading
from diagnose.records.ranks import BandwidthRecord

# Below, the start of a transfer still shows on a fast link.
JUDGED_FROM_BYTES = 64 * 2**20
# A network is slow enough that a smaller transfer already fills it.
JUDGED_FROM_BYTES_ON_NETWORK = 2**20

# The entry writes the rate that the user gave for the network here, in Gbit/s.
GIVEN_LINK = "link_gbit"

# How far apart two GPUs are, nearest first, as nvidia-smi's topology matrix names it.
DISTANCES = ("NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS")
_THROUGH_CPU = ("PHB", "NODE", "SYS")
_INTEL = re.compile(r"Intel|Xeon", re.IGNORECASE)
_PEER_OVERHEAD_INTEL = 1.2  # NCCL counts six bytes for five that peers send through an Intel CPU


@dataclass(frozen=True)
class Expectation:
    """What the link should give, or why that is unknown."""

    link: str
    bytes_per_second: float | None
    source: str  # of the figure; without one, the reason
    judged_from_bytes: int = JUDGED_FROM_BYTES
    reservation: str = ""


def expect(record: BandwidthRecord) -> Expectation:
    """The user's figure before the table's: only the user knows what the network was sold as."""
    given = read_given_rate(record)
    if len(record.ranks) < 2:
        return Expectation("no link", None, "one rank alone sends nothing")
    if given is not None:
        source = "the rate given with --link-gbit"
        return Expectation("the link", given, source, JUDGED_FROM_BYTES_ON_NETWORK)
    if record.nodes > 1:
        reason = "the nominal rate of the network is unknown; give it with --link-gbit"
        return Expectation("the network", None, reason, JUDGED_FROM_BYTES_ON_NETWORK)
    if record.backend != "nccl":
        reason = f"there is no published expectation for {record.backend} within one machine"
        return Expectation(record.backend, None, reason)
    link = farthest_link(record)
    if link is None:
        reason = "how the GPUs are connected could not be read"
        return Expectation("the link between the GPUs", None, reason)
    # Under WSL2 NVLink is not usable, whatever the topology says.
    if link.kind.value == "NVLINK" and not record.header.machine.wsl2:
        return _expect_nvlink(record.header.machine.gpus[link.first])
    return _expect_pcie(record, link)


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


def _expect_nvlink(gpu: Gpu) -> Expectation:
    known = find_link(NVLINKS, gpu.name)
    if known is None:
        reason = f"the table does not know how many NVLinks a card named {gpu.name} has"
        return Expectation("NVLink", None, reason)
    return Expectation(known.name, known.bytes_per_second, known.cite())


def _expect_pcie(record: BandwidthRecord, link: Link) -> Expectation:
    machine, kind = record.header.machine, str(link.kind.value)
    pair = [machine.gpus[index] for index in (link.first, link.second)]
    generation = _lowest((gpu.pcie_generation, gpu.pcie_generation_max) for gpu in pair)
    width = _lowest((gpu.pcie_width, gpu.pcie_width_max) for gpu in pair)
    known = None if generation is None else PCIE.get(int(generation))
    if known is None or not width:
        reason = f"the table has no PCIe {pcie_link(generation, width)}"
        return Expectation("PCIe", None, reason)
    name = f"PCIe {pcie_link(generation, width)} ({kind})"
    rate, source = known.bytes_per_second * width / FULL_WIDTH, known.cite()
    if width != FULL_WIDTH:
        source += f" for {known.name}"
    processor = machine.cpu_model.value or ""
    if kind in _THROUGH_CPU and _INTEL.search(processor):
        rate /= _PEER_OVERHEAD_INTEL
    if kind == "SYS":
        sockets = find_link(SOCKETS, processor)
        if sockets is None:
            reason = "the GPUs are on different sockets and the table does not know the processor"
            return Expectation(name, None, reason)
        if sockets.bytes_per_second < rate:
            name, rate = f"{name} across {sockets.name}", sockets.bytes_per_second
            source = sockets.cite()
    reservation = ""
    if machine.wsl2:
        reservation = "this is the figure without WSL2, for which no reliable one is published"
    return Expectation(name, rate, source, reservation=reservation)


def _lowest(of_cards: Iterable[tuple[Reading, Reading]]) -> float | None:
    """What all cards allow; an idle link shows a lower generation by itself than it can do."""
    known = [[each.value for each in pair if each.value is not None] for pair in of_cards]
    return min((max(values) for values in known if values), default=None)
