"""Is a lack of memory told from other errors, in the words of every allocator that says it?"""

from __future__ import annotations

import errno
import os

import pytest
import torch

from diagnose.measure.machine.out_of_memory import is_out_of_memory, read_asked_for

LACKING = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 3 GiB"),
    MemoryError(),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    RuntimeError("[enforce fail at alloc_cpu.cpp:126] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes."),
    RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nstd::bad_alloc"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    RuntimeError("MPS backend out of memory (MPS allocated: 1 GB, max allowed: 2 GB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED"),
    RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp"),
)
# All of them speak of memory.
OTHERS = (
    RuntimeError("required rank 4 tensor to use channels_last memory format"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("unsupported operation: more than one element refers to a single memory location"),
    RuntimeError("the prompt talks about being out of memory"),
    KeyError("can't allocate memory"),
    ValueError("CUDA error: out of memory"),
    OSError(errno.ENOSPC, "no space left in shared memory"),
)


@pytest.mark.parametrize("error", LACKING, ids=str)
def test_every_allocator_is_understood(error: Exception) -> None:
    assert is_out_of_memory(error, torch.OutOfMemoryError)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_the_word_memory_alone_says_nothing(error: Exception) -> None:
    assert not is_out_of_memory(error, torch.OutOfMemoryError)


def test_the_allocator_of_this_torch_is_understood() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value, torch.OutOfMemoryError)
    assert read_asked_for(raised.value) == f"{2**60} bytes"


def test_what_was_asked_for_is_read_where_it_is_said() -> None:
    assert [read_asked_for(error) for error in LACKING[:2]] == ["20.00 MiB", ""]
