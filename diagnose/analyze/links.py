"""How fast are the links that machines are built with? One table, every number with its source.

Rates are what an all-reduce can use of a link one way, as NCCL's own model takes them: below the
data sheet, because a link also carries headers. Bytes per second, GB = 10^9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Seconds per hop by kind of link. A network without RDMA takes longer.
NVLINK_HOP, PCI_HOP, NETWORK_HOP = 3.4e-6, 5.7e-6, 9.6e-6
HOP_SOURCE = (
    "latency per hop: NCCL src/graph/tuning.cc at 01afd20, hwLat of ring and simple protocol"
)

_NCCL = "NCCL's link model, src/graph/topo.h at 5067397"
_MEASURED = "measured busbw in stas00/ml-engineering at 744d01e"

FULL_WIDTH = 16  # lanes of the PCIe rows


@dataclass(frozen=True)
class KnownLink:
    """One kind of link: what a hop costs, how many bytes pass in a second one way, who says so."""

    name: str
    bytes_per_second: float
    hop_seconds: float
    source: str
    data_sheet_bytes_per_second: float | None = None

    def cite(self) -> str:
        sheet = self.data_sheet_bytes_per_second
        return self.source if sheet is None else f"{self.source}; data sheet {sheet / 1e9:g} GB/s"


# One NVLink by generation: bytes per second in NCCL's model, and on the data sheet.
_ONE_NVLINK = {
    "2": (20e9, 25e9),
    "3": (20e9, 25e9),
    "3 bridge": (12e9, 14e9),
    "4": (20.6e9, 25e9),
    "5": (40.1e9, 50e9),
}


def _nvlink(generation: str, links: int, measured: str = "") -> KnownLink:
    rate, sheet = _ONE_NVLINK[generation]
    name = f"NVLink {generation}, {links} links"
    source = f"{_NCCL}; {_MEASURED}: {measured}" if measured else _NCCL
    return KnownLink(name, links * rate, NVLINK_HOP, source, links * sheet)


_A100 = _nvlink("3", 12, "235 GB/s")
_H100 = _nvlink("4", 18, "363 to 367 GB/s as a ring, 473 to 482 GB/s where the switch adds")
_B200 = _nvlink("5", 18, "673 to 682 GB/s as a ring, 838 to 846 GB/s where the switch adds")
# By the card's name, because cards of one compute capability differ in their number of links; the
# first pattern that fits decides, and a card without a row has no expected rate.
NVLINKS: tuple[tuple[str, KnownLink], ...] = (
    (r"V100", _nvlink("2", 6)),
    (r"A800", _nvlink("3", 8)),
    (r"A100", _A100),
    (r"RTX 3090|RTX A[456]\d00|A40\b", _nvlink("3 bridge", 4)),
    (r"H800", _nvlink("4", 8)),
    (r"H100 (?:PCIe|NVL)", _nvlink("4", 12)),
    (r"H100|H200|H20\b", _H100),
    (r"B[123]00\b", _B200),
)


def _pcie(generation: int, rate: float, sheet: float, measured: str = "") -> KnownLink:
    source = f"{_NCCL}; {measured}" if measured else _NCCL
    return KnownLink(f"PCIe gen {generation} x{FULL_WIDTH}", rate, PCI_HOP, source, sheet)


PCIE = {
    3: _pcie(3, 12e9, 16e9),
    4: _pcie(
        4,
        24e9,
        31e9,
        "four RTX 4090 measured 18 GB/s through shared memory and 22 GB/s directly "
        "(NVIDIA/nccl#1603)",
    ),
    5: _pcie(5, 48e9, 63e9),
    6: _pcie(6, 96e9, 121e9),
}


def _sockets(name: str, rate: float) -> KnownLink:
    return KnownLink(name, rate, PCI_HOP, _NCCL)


# Between the sockets of a machine, by processor; the first pattern that fits decides.
SOCKETS: tuple[tuple[str, KnownLink], ...] = (
    (r"AMD", _sockets("AMD sockets", 16e9)),
    # The second digit of a Xeon's number is its generation; the sixth has a letter behind.
    (
        r"Xeon.* (?:[3-9]5\d\d|6[79]\d\d[PE])",
        _sockets("sockets of Xeon generation 5 or 6", 40e9),
    ),
    (r"Xeon.* [3-9]4\d\d", _sockets("sockets of Xeon generation 4", 22e9)),
    (r"Xeon.* [3-9][123]\d\d", _sockets("sockets of Xeon generation 1 to 3", 10e9)),
    (r"Intel|Xeon", _sockets("Intel sockets of unknown age", 6e9)),
    (r"ARM|Neoverse|Grace", _sockets("ARM sockets", 6e9)),
)


def _network(title: str, gigabits: int) -> KnownLink:
    source = f"{_NCCL}, NET_BW 12 for 100 Gbit/s"
    name = f"{title}, {gigabits} Gbit/s"
    return KnownLink(name, gigabits * 0.12e9, NETWORK_HOP, source, gigabits * 1e9 / 8)


NETWORKS = {
    "ib100": _network("InfiniBand EDR", 100),
    "ib200": _network("InfiniBand HDR", 200),
    "ib400": _network("InfiniBand NDR", 400),
    "eth10": _network("Ethernet", 10),
    "eth25": _network("Ethernet", 25),
    "eth100": _network("Ethernet", 100),
}


@dataclass(frozen=True)
class Cluster:
    """How ranks reach each other: inside a host, and between hosts where there are several."""

    inside: KnownLink
    ranks_per_host: int | None = None  # None: whatever it was when it was measured
    between: KnownLink | None = None
    # How many ranks of a host share one adapter to the others.
    ranks_per_adapter: int = 1


# The usual server: eight cards in one host.
RANKS_PER_HOST = 8


def _server(inside: KnownLink, network: str, adapters: int) -> Cluster:
    return Cluster(inside, RANKS_PER_HOST, NETWORKS[network], RANKS_PER_HOST // adapters)


# Inside a host first, from old to new. The network beside each is the one its servers are sold
# with: an adapter for every card of a DGX, one for all cards of a PCIe server.
CLUSTERS = {
    "nvlink3": _server(_A100, "ib200", 8),
    "nvlink4": _server(_H100, "ib400", 8),
    "nvlink5": _server(_B200, "ib400", 8),
    "pcie3": _server(PCIE[3], "eth10", 1),
    "pcie4": _server(PCIE[4], "eth25", 1),
    "pcie5": _server(PCIE[5], "eth100", 1),
    **{name: Cluster(network, ranks_per_host=1) for name, network in NETWORKS.items()},
}
# The link of the machine that was measured, extended as it is.
MEASURED = "measured"
LINK_NAMES = (MEASURED, *CLUSTERS)


def find_link(rows: tuple[tuple[str, KnownLink], ...], name: str) -> KnownLink | None:
    """The first row whose pattern fits the name of a card or processor."""
    fits = (link for pattern, link in rows if re.search(pattern, name, re.IGNORECASE))
    return next(fits, None)


def find_cluster(name: str) -> Cluster:
    try:
        return CLUSTERS[name]
    except KeyError:
        raise ValueError(f"no link '{name}'; there are {', '.join(LINK_NAMES)}") from None
