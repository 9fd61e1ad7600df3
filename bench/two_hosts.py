"""How does one machine become two hosts? Network namespaces joined by a link of a chosen rate."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PORT = 29511
# Far below the smallest size that is judged, or it would run above the rate; but the kernel wakes
# up so rarely that a fast link needs as much as it sends meanwhile.
BURST_BYTES, WAKE_SECONDS = 131_072, 0.001
LATENCY = "200ms"


@dataclass(frozen=True)
class Host:
    """One end of the link."""

    namespace: str
    interface: str
    address: str


@dataclass(frozen=True)
class Link:
    """Two hosts, and what is started on them."""

    hosts: tuple[Host, Host]

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        stderr: int | IO[str] = subprocess.PIPE,
    ) -> list[subprocess.Popen[str]]:
        """One torchrun of one rank on each host, as two people would type it."""
        return [
            self._start(rank, host, words, environment, stderr)
            for rank, host in enumerate(self.hosts)
        ]

    def cut(self) -> None:
        """Pull the cable."""
        host = self.hosts[1]
        _ip("-n", host.namespace, "link", "set", host.interface, "down")

    def _start(
        self,
        rank: int,
        host: Host,
        words: Sequence[str],
        environment: Mapping[str, str],
        stderr: int | IO[str],
    ) -> subprocess.Popen[str]:
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
            "--rdzv-backend=c10d", f"--local-addr={host.address}",
            f"--rdzv-endpoint={self.hosts[0].address}:{PORT}",
            # By itself torch finds the host by its name, and both hosts share ours.
            f"--rdzv-conf=is_host={int(rank == 0)}",
        ]  # fmt: skip
        return subprocess.Popen(
            ["ip", "netns", "exec", host.namespace, *torchrun, *words],
            env={**environment, "GLOO_SOCKET_IFNAME": host.interface},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


@contextmanager
def two_hosts(rate: str) -> Iterator[Link]:
    """Two hosts with a link of this rate ("200mbit", "4gbit") in both directions."""
    mark = f"{os.getpid() % 10000}"
    hosts = (
        Host(f"diag{mark}a", f"da{mark}", "10.77.0.1"),
        Host(f"diag{mark}b", f"db{mark}", "10.77.0.2"),
    )
    burst = max(BURST_BYTES, int(WAKE_SECONDS * bytes_per_second(rate)))
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        first, second = hosts
        _ip(
            "link", "add", first.interface, "netns", first.namespace, "type", "veth",
            "peer", "name", second.interface, "netns", second.namespace,
        )  # fmt: skip
        for host in hosts:
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            _ip("-n", host.namespace, "link", "set", host.interface, "up")
            shape = ["root", "tbf", "rate", rate, "burst", f"{burst}b", "latency", LATENCY]
            _run("tc", "-n", host.namespace, "qdisc", "add", "dev", host.interface, *shape)
        yield Link(hosts)
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False)


def bytes_per_second(rate: str) -> float:
    """Of "200mbit" or "4gbit"."""
    for unit, bits in (("mbit", 1e6), ("gbit", 1e9)):
        number = rate.removesuffix(unit)
        if number != rate and number.isdecimal() and int(number) > 0:
            return int(number) * bits / 8
    raise ValueError(f"'{rate}' is no rate; write 200mbit or 4gbit")


def find_obstacle() -> str:
    """Why this machine cannot be two hosts, or nothing."""
    if sys.platform != "linux" or not Path("/proc/net").exists():
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    try:
        with two_hosts("1gbit"):
            return ""
    except FileNotFoundError as error:
        return f"{error.filename} is not installed (Debian: iproute2)"
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()[:200]}"


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, text=True, check=True)
