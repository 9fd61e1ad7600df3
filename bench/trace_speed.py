"""How fast is a large trace read, and in how much memory? A generated file of so many megabytes.

    python -m bench.trace_speed [MEGABYTES]
    python -m bench.trace_speed FILE

Once with the parser of the extra `trace`, once as without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.kept import row, table

_KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
_SITES = ("train.py(12): train", "model.py(40): forward", "torch/nn/modules/module.py(1): _call")


def write_trace(path: Path, megabytes: int) -> None:
    """Steps as a profiler writes them with lines and shapes: frames, operators, calls, kernels."""
    wanted, at, step, link = megabytes * 10**6, 1.7e15, 0, 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n')
        while file.tell() < wanted:
            begin, step = at, step + 1
            events = []
            for layer in range(400):
                link, at = link + 1, at + 50
                ids = {"External id": link, "Sequence number": link, "Record function id": 0}
                shapes = {
                    "Concrete Inputs": ["", ""],
                    "Input type": ["float", "float"],
                    "Input Strides": [[1024, 1], [64, 1]],
                    "Input Dims": [[64, 1024], [1024, 64]],
                    "Ev Idx": link,
                }
                call = {"cbid": 211, "correlation": link, "External id": link}
                frame = {"Python parent id": link, "Python id": link + 1, "Ev Idx": link}
                device = {
                    "External id": link,
                    "queued": 0,
                    "device": 0,
                    "context": 1,
                    "stream": 7,
                    "correlation": link,
                    "registers per thread": 32,
                    "shared memory": 2112,
                    "blocks per SM": 47.5,
                    "warps per SM": 380.1,
                    "grid": [64, 1, 1],
                    "block": [256, 1, 1],
                    "est. achieved occupancy %": 100,
                }
                events += [
                    _event("python_function", _SITES[layer % 3], at, 45.0, frame),
                    _event("python_function", "<built-in function isinstance>", at, 5.0, frame),
                    _event("cpu_op", "aten::mm", at + 5, 30.0, ids | shapes),
                    _event("cuda_runtime", "cudaLaunchKernel", at + 9, 6.0, call),
                    _event("kernel", _KERNEL, at + 20, 25.0, device),
                ]
            lasts = at + 50 - begin
            events.append(_event("user_annotation", f"ProfilerStep#{step}", begin, lasts))
            for each in events:
                file.write(json.dumps(each, indent=2) + ",\n")
        file.write('{"ph": "M", "name": "end", "pid": 7}\n]}\n')


def _event(
    category: str, name: str, at: float, lasts: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    head = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 7}
    return {**head, "ts": at, "dur": lasts, "args": args or {}}


def read(path: Path, with_extra: bool) -> str:
    """A row of the table: wall clock and memory of the whole command, in a process of its own."""
    block = "" if with_extra else "sys.modules['msgspec'] = None; "
    code = f"import sys; {block}from diagnose.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "trace", "--json", "-", str(path)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"diagnose trace ended with {process.returncode}")
    size, parser = path.stat().st_size / 1e6, "msgspec" if with_extra else "standard library"
    cpu = used.ru_utime + used.ru_stime
    figures = (f"{size:.0f}", f"{seconds:.1f}", f"{cpu:.1f}", f"{size / seconds:.0f}")
    return row((parser, *figures, f"{used.ru_maxrss / 1e3:.0f}"))


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else "500"
    titles = "<parser", ">MB", ">s", ">CPU s", ">MB/s", ">peak MB"
    print(*table(titles, ()), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(wanted)
        if wanted.isdigit():
            path = Path(folder) / "trace.json"
            write_trace(path, int(wanted))
        for with_extra in (True, False):
            print(read(path, with_extra), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
