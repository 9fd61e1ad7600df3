"""What stands in for a GPU where there is none? `fakegpu`, an accelerator made of host memory.

It lets tests take the paths that a CPU never takes: an accelerator that torch finds by itself,
memory that runs out with a real torch.OutOfMemoryError, peak bytes, events, streams, pinned
memory, autocast, gradient scaling. It computes with the CPU's kernels, so results are right
and times mean nothing.

Use
    A test asks for the `fakegpu_env` fixture and adds it to the environment of a subprocess.
    There, a plain `import torch` brings the device, because torch loads every package that
    declares an entry point `torch.backends`:

        subprocess.run([sys.executable, "-m", "diagnose", "run", "--device", "fakegpu"],
                       env=os.environ | fakegpu_env)

    FAKEGPU_LIMIT_BYTES sets the memory of the device at start (2 GiB unless given), and
    torch.fakegpu.set_limit_bytes(n) later. FAKEGPU_UUID is the UUID that it reports.
    torch.fakegpu.is_fake is how a measuring program knows what it is looking at.

Files
    fakegpu.cpp          the device: streams, events, operators, autocast
    memory.h             its memory: the byte limit, the accounts, pinned memory
    device.py            the module that torch knows as torch.fakegpu
    fakegpu-0.dist-info  the package metadata through which torch finds it
    build.py             compiles and puts everything together in .cache/fakegpu
    plugin.py            the fixture
    scenarios.py         what tests/measure/test_fakegpu.py runs on it

Limits
    One device. No convolution, no GRU, no Tensor.unfold as a view, no process group. Kernels
    work on copies on the host that are not counted, so peak bytes are those of the tensors
    alone. A generator for it is a CPU generator. The C++ side uses private parts of torch and
    is written for the version in requirements.lock.
"""
