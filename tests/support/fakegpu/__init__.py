"""What stands in for a GPU where there is none? `fakegpu`, an accelerator made of host memory.

It lets tests take the paths that a CPU never takes: an accelerator that torch finds by itself,
memory that runs out with a real torch.OutOfMemoryError, peak bytes, events, streams, pinned
memory, autocast, gradient scaling, graphs. It computes with the CPU's kernels: results are right.
Work takes no time of the device, unless time is simulated: then the host only queues it, and
whoever waits for it waits as long as a device of the given speed would take.

Use
    A test asks for the `fakegpu_env` fixture and adds it to the environment of a subprocess.
    There, a plain `import torch` brings the device, because torch loads every package that
    declares an entry point `torch.backends`:

        subprocess.run([sys.executable, "-m", "diagnose", "run", "--device", "fakegpu"],
                       env=os.environ | fakegpu_env)

    By hand: PYTHONPATH=$(make -s fakegpu) TORCH_DEVICE_BACKEND_AUTOLOAD=1 python ...

    FAKEGPU_LIMIT_BYTES  the memory of a device at start, 2 GiB unless given; later
                         torch.fakegpu.set_limit_bytes(n)
    FAKEGPU_DEVICES      how many devices there are, 1 unless given
    FAKEGPU_UUID         the UUID that they report
    FAKEGPU_EXCLUSIVE    a file: only one process at a time may have memory, as of a card in
                         exclusive-process mode
    FAKEGPU_PROFILE      slow, h100 or v100: time is simulated, as fast as device/profiles.py says
    FAKEGPU_KERNEL_US, FAKEGPU_GFLOPS, FAKEGPU_GBYTES, FAKEGPU_LINK_GBYTES,
    FAKEGPU_NETWORK_GBYTES
                         the same one by one: a kernel takes the first, plus its FLOPs, plus the
                         bytes that it reads and writes; copies take the link, collectives the
                         network
    torch.fakegpu.is_fake is how a measuring program knows what it is looking at.

The truth about simulated time, in seconds of time.perf_counter()
    torch.fakegpu.kernel_log(since=0)  each kernel, copy and collective: launched, start, end,
                                       stream, device, name, bytes, FLOPs, thread
    torch.fakegpu.wait_log(since=0.0)  when and in which thread the host waited
    torch.fakegpu.kernel_count()       how many there were: the next one's number
    torch.fakegpu.busy_seconds(0)      how long a stream of the device had something to do
    torch.fakegpu.waits()              how often and how long the host waited

With simulated time
    Kernels of all streams share the device; copies have an engine in each direction. Memory comes
    in segments that are kept, as CUDA keeps them (unless PYTORCH_ALLOC_CONF has
    expandable_segments:True); if it runs out, the device is waited for and they are given back.
    Ranks use `torch.distributed.init_process_group("fakeccl")`, see device/collectives.py.

What CUDA refuses and it refuses, with or without time
    a fused optimizer with state elsewhere, the backward pass of a recurrent layer in eval mode,
    memory beyond the limit, and, while a graph is captured, whatever the host would wait for.

Files
    source/              the device in C++: timeline, memory, streams, operators, graphs
    device/              the package that torch knows as torch.fakegpu
    fakegpu-0.dist-info  the package metadata through which torch finds it
    build.py             compiles and puts everything together in .cache/fakegpu
    calibrate.py         where the figures of the profiles come from
    plugin.py            the fixture
    scenarios.py         what tests/measure/test_fakegpu.py runs on it
    timed.py, suite.py   what tests/measure/test_twin.py runs on it

Limits
    No GRU, no Tensor.unfold as a view. Kernels work on copies on the host that are not counted,
    so peak bytes are those of the tensors alone. A generator for it is a CPU generator. A host
    cannot use the result of a collective before the hosts of all ranks have launched it.
    The C++ side uses private parts of torch and is written for the version in requirements.lock.
"""
