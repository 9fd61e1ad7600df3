"""How do ranks exchange tensors of the fake GPU? On a stream of their own, as NCCL does.

Gloo moves the bytes at once. The time is simulated: a collective begins when the stream of the
last rank gets there and then takes as long as its bytes take on the network, so a rank that is
early waits on its device and not on its host. One thing a GPU can that this cannot: a host
may not use a result before the hosts of all ranks have launched the collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import distributed

from .log import library

c10d: Any = distributed.distributed_c10d
NAME = "fakeccl"
# Bytes on the network per byte of the tensor, for many ranks.
SHARES = {"all_reduce": 2.0}
Nested = Any


class Work(c10d.Work):  # type: ignore[misc]
    def __init__(self, future: torch.futures.Future[Nested]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def get_future(self) -> torch.futures.Future[Nested]:
        return self._future


class Ranks(c10d.ProcessGroup):  # type: ignore[misc]
    """One group of ranks, each with its own device."""

    network_bytes = 10e9

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = c10d.ProcessGroupGloo(store, rank, size, timeout)
        self._streams: dict[int, torch.Stream] = {}
        self._until = 0.0
        self._launched: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._finish_in_order, daemon=True).start()

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def _finish_in_order(self) -> None:
        while True:
            self._launched.get()()

    def _exchange(self, name: str, tensors: Nested, start: Callable[[Nested], Any]) -> Work:
        first = _first(tensors)
        device = first.device if first is not None else torch.accelerator.current_accelerator()
        assert device is not None
        index = torch.accelerator.current_device_index() if device.index is None else device.index
        nbytes = _bytes(tensors)
        launched = time.perf_counter()
        current = torch.accelerator.current_stream(index).stream_id
        ready = library.fakegpu_end_of_stream(index, current)
        if index not in self._streams:
            self._streams[index] = torch.Stream(torch.device("fakegpu", index))
        stream = self._streams[index]
        moving = start(_on_host(tensors))
        everyone = torch.tensor([ready], dtype=torch.float64)
        options = c10d.AllreduceOptions()
        options.reduceOp = distributed.ReduceOp.MAX
        asking = self._gloo.allreduce([everyone], options)
        future: torch.futures.Future[Nested] = torch.futures.Future(
            devices=[torch.device("fakegpu", index)]
        )

        def finish() -> None:
            try:
                moving.wait()
                asking.wait()
            except Exception as error:
                future.set_exception(error)
                return
            size = self.size()
            moved = nbytes * SHARES.get(name, 1.0) * (size - 1) / size
            begin = max(self._until, everyone.item())
            self._until = begin + moved / self.network_bytes
            library.fakegpu_collective(
                index, stream.stream_id, name.encode(), nbytes, launched, ready, self._until
            )
            # Whoever waits for the future makes its stream follow this one.
            with stream:
                future.set_result(tensors)

        self._launched.put(finish)
        return Work(future)

    def allreduce(self, tensors: Nested, opts: Any = None) -> Work:
        options = opts or c10d.AllreduceOptions()
        return self._exchange(
            "all_reduce", tensors, lambda host: self._gloo.allreduce(host, options)
        )

    def broadcast(self, tensors: Nested, opts: Any = None) -> Work:
        return self._exchange("broadcast", tensors, lambda host: self._gloo.broadcast(host, opts))

    def reduce(self, tensors: Nested, opts: Any = None) -> Work:
        return self._exchange("reduce", tensors, lambda host: self._gloo.reduce(host, opts))

    def allgather(self, outputs: Nested, inputs: Nested, opts: Any = None) -> Work:
        return self._exchange(
            "all_gather", (outputs, inputs), lambda host: self._gloo.allgather(*host)
        )

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work:
        return self._exchange(
            "all_gather", (output, given), lambda host: self._gloo._allgather_base(*host)
        )

    def _reduce_scatter_base(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> Work:
        return self._exchange(
            "reduce_scatter",
            (output, given),
            lambda host: self._gloo._reduce_scatter_base(*host, opts),
        )

    def barrier(self, opts: Any = None) -> Work:
        return self._exchange("barrier", [], lambda host: self._gloo.barrier())


def _first(tensors: Nested) -> torch.Tensor | None:
    if isinstance(tensors, torch.Tensor):
        return tensors
    return next((found for each in tensors if (found := _first(each)) is not None), None)


def _bytes(tensors: Nested) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    return max((_bytes(each) for each in tensors), default=0)


def _on_host(tensors: Nested) -> Nested:
    """The same bytes as CPU tensors, in the same lists."""
    if not isinstance(tensors, torch.Tensor):
        return type(tensors)(_on_host(each) for each in tensors)
    if tensors.device.type == "cpu":
        return tensors
    return torch.ops.fakegpu.host_view(tensors.detach())


def register(network_bytes: float) -> None:
    Ranks.network_bytes = network_bytes
    distributed.Backend.register_backend(NAME, Ranks, devices=["fakegpu"])
