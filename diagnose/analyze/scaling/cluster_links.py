"""How fast are the links that clusters are built with? A table, every number with its source.

Rates are what an all-reduce can use of a link in one direction, as NCCL's own model takes them,
not the data sheet's sum of both directions. Bytes per second, GB = 10^9.
"""

from __future__ import annotations

from dataclasses import dataclass

# The usual server: eight cards in one host.
RANKS_PER_HOST = 8

_RATES = "rate: NCCL src/graph/topo.h"
_HOPS = "latency per hop: NCCL src/graph/tuning.cc at 01afd20, hwLat of ring and simple protocol"
# Seconds per hop by kind of link. A network without RDMA takes longer.
_NVLINK_HOP, _PCI_HOP, _NETWORK_HOP = 3.4e-6, 5.7e-6, 9.6e-6


@dataclass(frozen=True)
class Wire:
    """One kind of link: what a hop costs and how many bytes pass in a second, one direction."""

    hop_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Interconnect:
    """How ranks reach each other: inside a host, and between hosts where there are several."""

    name: str
    title: str
    inside: Wire
    source: str
    ranks_per_host: int | None = None  # None: whatever it was when it was measured
    between: Wire | None = None
    between_title: str = ""
    # How many ranks of a host share one adapter to the others.
    ranks_per_adapter: int = 1


def _network(name: str, title: str, gigabits: int) -> Interconnect:
    # NCCL takes 12 GB/s for 100 Gbit/s.
    wire = Wire(_NETWORK_HOP, gigabits * 0.12e9)
    source = f"{_RATES}, NET_BW 12 for 100 Gbit/s; {_HOPS}, network"
    return Interconnect(name, title, wire, source, ranks_per_host=1)


NETWORKS: tuple[Interconnect, ...] = (
    _network("ib100", "InfiniBand EDR, 100 Gbit/s", 100),
    _network("ib200", "InfiniBand HDR, 200 Gbit/s", 200),
    _network("ib400", "InfiniBand NDR, 400 Gbit/s", 400),
    _network("eth10", "Ethernet, 10 Gbit/s", 10),
    _network("eth25", "Ethernet, 25 Gbit/s", 25),
    _network("eth100", "Ethernet, 100 Gbit/s", 100),
)


def _in_host(
    name: str, title: str, wire: Wire, network: str, adapters: int, source: str
) -> Interconnect:
    between = next(each for each in NETWORKS if each.name == network)
    return Interconnect(
        name=name,
        title=title,
        inside=wire,
        source=f"{_RATES}, {source}; {_HOPS}",
        ranks_per_host=RANKS_PER_HOST,
        between=between.inside,
        between_title=between.title,
        ranks_per_adapter=RANKS_PER_HOST // adapters,
    )


# Inside a host first, from old to new. The network beside each is the one its servers are sold
# with: an adapter for every card of a DGX, one for all cards of a PCIe server.
LINKS: tuple[Interconnect, ...] = (
    _in_host(
        "nvlink3",
        "NVLink 3 (A100)",
        Wire(_NVLINK_HOP, 240e9),
        "ib200",
        8,
        "12 links of SM80_NVLINK_BW 20",
    ),
    _in_host(
        "nvlink4",
        "NVLink 4 (H100)",
        Wire(_NVLINK_HOP, 370.8e9),
        "ib400",
        8,
        "18 links of SM90_NVLINK_BW 20.6",
    ),
    _in_host(
        "nvlink5",
        "NVLink 5 (B200)",
        Wire(_NVLINK_HOP, 721.8e9),
        "ib400",
        8,
        "18 links of SM100_NVLINK_BW 40.1",
    ),
    _in_host(
        "pcie3", "PCIe 3 x16", Wire(_PCI_HOP, 12e9), "eth10", 1, "PCI_BW 12 for generation 3 x16"
    ),
    _in_host("pcie4", "PCIe 4 x16", Wire(_PCI_HOP, 24e9), "eth25", 1, "twice PCI_BW 12"),
    _in_host("pcie5", "PCIe 5 x16", Wire(_PCI_HOP, 48e9), "eth100", 1, "four times PCI_BW 12"),
    *NETWORKS,
)
# The link of the machine that was measured, extended as it is.
MEASURED = "measured"
LINK_NAMES = (MEASURED, *(each.name for each in LINKS))


def find_link(name: str) -> Interconnect:
    for each in LINKS:
        if each.name == name:
            return each
    raise ValueError(f"no link '{name}'; there are {', '.join(LINK_NAMES)}")


def measured_link(alpha_seconds: float, bytes_per_second: float, ranks: int) -> Interconnect:
    """The wire under a measured line, seconds = alpha + bytes / rate, of an all-reduce.

    A ring of n ranks makes 2(n - 1) hops and sends 2(n - 1)/n of the bytes over every wire.
    """
    if ranks < 2:
        raise ValueError("one rank has no link; measure with two or more")
    hops = 2 * (ranks - 1)
    wire = Wire(alpha_seconds / hops, bytes_per_second * hops / ranks)
    return Interconnect(MEASURED, f"the link as measured with {ranks} ranks", wire, "this record")
