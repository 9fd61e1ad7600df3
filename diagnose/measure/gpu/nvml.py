"""What does NVML say? The only file that talks to the NVIDIA management library.

No question raises. An answer is a value, or a Failure that says what is wrong and what to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from diagnose.records.header import Fact, Reading

T = TypeVar("T")
Case = Literal["unsupported", "no permission", "lost", "unavailable"]
Field = tuple[int, int]  # its number and its scope
Call = tuple[str, tuple[int, ...]]  # its name and its arguments after the handle

# Initializing a driver that is not resident takes seconds; a hung one takes for ever.
PATIENCE_SECONDS = 10.0

WATTS_PER_MILLIWATT = 1e-3
JOULES_PER_MILLIJOULE = 1e-3
HERTZ_PER_MEGAHERTZ = 1e6
SHARE_PER_PERCENT = 1e-2

# nvmlMemory_v2: the form of the answer that leaves out what the driver reserves for itself.
_MEMORY_VERSION = 0x02000028
# In the order of preference.
MEMORY_CALLS = (
    ("nvmlDeviceGetMemoryInfo", (_MEMORY_VERSION,)),
    ("nvmlDeviceGetMemoryInfo", ()),
)

_CASES: Mapping[int, tuple[Case, str]] = {
    1: ("lost", "NVML is no longer initialized; start the run again"),
    2: ("unsupported", "NVML does not accept this question for this device"),
    3: ("unsupported", "this GPU or its driver does not offer it"),
    4: ("no permission", "the user may not read it; ask the administrator or run as root"),
    6: ("unsupported", "NVML knows no such device or value"),
    8: ("lost", "the GPU lacks external power; check its power cables"),
    9: ("unavailable", "the NVIDIA driver is not loaded; run nvidia-smi and install the driver"),
    10: ("lost", "the driver timed out; run nvidia-smi to see if the GPU still answers"),
    11: ("unavailable", "the kernel reports an interrupt problem of the GPU; see dmesg"),
    12: (
        "unavailable",
        "libnvidia-ml.so.1 was not found; install the NVIDIA driver, "
        "or start the container with access to the GPU",
    ),
    13: ("unsupported", "the driver is too old to know this question; a newer driver has it"),
    14: ("unsupported", "the GPU's infoROM is corrupted; it needs the vendor's attention"),
    15: ("lost", "the GPU has fallen off the bus; see dmesg for Xid errors and reboot"),
    16: ("lost", "the GPU must be reset (nvidia-smi --gpu-reset) before it works again"),
    17: ("no permission", "the system blocks the GPU; restart the container or WSL"),
    18: ("unavailable", "the driver was updated but its old module is still loaded; reboot"),
    20: ("lost", "the driver ran out of memory"),
    21: ("unsupported", "the GPU has no data for it"),
    27: ("lost", "the GPU is not ready; try again"),
    28: ("unavailable", "the driver sees no GPU; run nvidia-smi"),
    999: ("lost", "the driver gives no cause; if this is a container, restart it"),
}
_PARENT = (
    "NVML does not know torch's UUID and the device was found by its PCI address: if torch uses "
    "a MIG slice, this is the whole GPU with its neighbours"
)
_MIG_ON = "MIG is on: this is the whole GPU with all its slices, not only the one that torch uses"
_WRONG_PACKAGE = (
    "the installed module pynvml is not NVIDIA's own; "
    "run: pip uninstall pynvml && pip install nvidia-ml-py"
)
_NO_PACKAGE = "the package nvidia-ml-py is not installed; run: pip install nvidia-ml-py"
_OLD_PACKAGE = "the installed nvidia-ml-py does not know it; run: pip install -U nvidia-ml-py"

# By nvmlValueType_t: the member of the answer's union that holds the number.
_UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(frozen=True)
class Failure:
    """Why NVML gave no answer. In place of a session or a device it is the answer to everything."""

    case: Case
    reason: str

    def ask(self, call: str, *arguments: Any) -> Failure:
        return self

    def devices(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Identity:
    """A device as torch knows it: what is needed to find the same device in NVML."""

    index: int  # torch's own count, which NVML does not share
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True)
class Session:
    """NVML, initialized."""

    library: Any

    def ask(self, call: str, *arguments: Any) -> Any:
        """The raw answer, or a Failure."""
        function = getattr(self.library, call, None)
        if function is None:
            return Failure("unsupported", f"unsupported: {_OLD_PACKAGE} ({call})")
        try:
            return function(*arguments)
        except self.library.NVMLError as error:
            return explain(call, error.value)

    def devices(self) -> dict[str, Any]:
        """The handle of every GPU that NVML sees and can name, by its UUID."""
        count = self.ask("nvmlDeviceGetCount")
        found = {}
        for index in range(0 if isinstance(count, Failure) else count):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if not isinstance(handle, Failure):
                uuid = self.ask("nvmlDeviceGetUUID", handle)
                if not isinstance(uuid, Failure):
                    found[uuid] = handle
        return found


@dataclass(frozen=True)
class Found:
    """A device in NVML, and a warning if it may be another GPU."""

    session: Session
    handle: Any
    doubt: str = ""

    def ask(self, call: str, *arguments: Any) -> Any:
        return self.session.ask(call, self.handle, *arguments)

    def ask_first(self, calls: Sequence[Call]) -> Any:
        """The answer to the first call that has one, or the Failure of the last."""
        answer: Any = None
        for call, arguments in calls:
            answer = self.ask(call, *arguments)
            if not isinstance(answer, Failure):
                break
        return answer

    def fields(self, wanted: Sequence[Field]) -> dict[Field, float | Failure]:
        """Many (field, scope) in one call. It succeeds if any field does, so each is checked."""
        answer = self.ask("nvmlDeviceGetFieldValues", list(wanted))
        if isinstance(answer, Failure):
            return dict.fromkeys(wanted, answer)
        return {
            key: _decode_field(key[0], field) for key, field in zip(wanted, answer, strict=True)
        }


def as_reading(answer: Any, take: Callable[[Any], float] = float) -> Reading:
    if isinstance(answer, Failure):
        return Reading(None, answer.reason)
    return Reading(float(take(answer)))


def as_fact(answer: Any, take: Callable[[Any], str] = str) -> Fact:
    return Fact(None, answer.reason) if isinstance(answer, Failure) else Fact(take(answer))


def explain(call: str, code: int) -> Failure:
    case, sentence = _CASES.get(code, ("unsupported", "NVML refused the question"))
    return Failure(case, f"{case}: {sentence} ({call}, NVML error {code})")


def _decode_field(field_id: int, field: Any) -> float | Failure:
    if field.nvmlReturn != 0:
        return explain(f"field {field_id}", field.nvmlReturn)
    if not 0 <= field.valueType < len(_UNION_MEMBERS):
        return Failure("unsupported", f"unsupported: unknown value type of NVML field {field_id}")
    return float(getattr(field.value, _UNION_MEMBERS[field.valueType]))


def answer_within(seconds: float, question: Callable[[], T]) -> T | Failure:
    """Ask in a thread of its own: a driver call that never returns must not stop the run."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(question())
        except Exception as error:  # raised again below, in the caller's thread
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="nvml-question").start()
    try:
        return future.result(timeout=seconds)
    except FutureTimeoutError:
        return Failure("lost", f"lost: NVML did not answer within {seconds:g} s; try nvidia-smi")


@contextmanager
def open_session(patience_seconds: float = PATIENCE_SECONDS) -> Iterator[Session | Failure]:
    """NVML for the length of a `with` block, or the reason why there is none."""
    session = answer_within(patience_seconds, _initialize)
    try:
        yield session
    finally:
        if isinstance(session, Session):
            open_one = session
            answer_within(patience_seconds, lambda: open_one.ask("nvmlShutdown"))


def _initialize() -> Session | Failure:
    try:
        import pynvml
    except ImportError:
        return Failure("unavailable", f"unavailable: {_NO_PACKAGE}")
    # Unofficial packages of the same name lack one or both of these.
    if not all(
        hasattr(pynvml, it) for it in ("nvmlDeviceGetFieldValues", "_nvmlGetFunctionPointer")
    ):
        return Failure("unavailable", f"unavailable: {_WRONG_PACKAGE}")
    session = Session(pynvml)
    failure = session.ask("nvmlInit")
    return failure if isinstance(failure, Failure) else session


def describe_library(session: Session | Failure) -> Fact:
    if isinstance(session, Failure):
        return Fact(None, session.reason)
    return Fact("stub" if is_stub(session) else "available")


def is_stub(session: Session | Failure) -> bool:
    """Whether the library is the test suite's stand-in, which says so by an extra symbol."""
    return isinstance(session, Session) and hasattr(session.library.nvmlLib, "diagnose_nvml_stub")


def find_device(session: Session | Failure, identity: Identity) -> Found | Failure:
    """torch's device in NVML: by UUID, by PCI address, and by position only at last."""
    if isinstance(session, Failure):
        return session
    found = _match(session, identity)
    if isinstance(found, Failure) or found.doubt:
        return found
    mode = found.ask("nvmlDeviceGetMigMode")
    sliced = not isinstance(mode, Failure) and mode[0] == 1
    return replace(found, doubt=_MIG_ON) if sliced else found


def _match(session: Session, identity: Identity) -> Found | Failure:
    names = _uuid_names(identity)
    refusal: Failure | None = None
    for name in names:
        answer = session.ask("nvmlDeviceGetHandleByUUID", name)
        if not isinstance(answer, Failure):
            return Found(session, answer)
        refusal = refusal or answer
    for uuid, handle in session.devices().items() if names else ():
        if uuid in names:
            return Found(session, handle)
    if identity.pci_bus_id:
        handle = session.ask("nvmlDeviceGetHandleByPciBusId", identity.pci_bus_id)
        if not isinstance(handle, Failure):
            return Found(session, handle, _PARENT if names else "")
    # With a UUID it is known which GPU is wanted, so a position would be a guess.
    return refusal or _take_position(session, identity)


def _uuid_names(identity: Identity) -> tuple[str, ...]:
    if not identity.uuid:
        return ()
    if identity.uuid.startswith(("GPU-", "MIG-")):
        return (identity.uuid,)
    return (f"GPU-{identity.uuid}", f"MIG-{identity.uuid}")


def _take_position(session: Session, identity: Identity) -> Found | Failure:
    handle = session.ask("nvmlDeviceGetHandleByIndex", identity.index)
    if isinstance(handle, Failure):
        return handle
    name = session.ask("nvmlDeviceGetName", handle)
    if identity.name and not isinstance(name, Failure) and name != identity.name:
        return Failure(
            "unavailable",
            f"unavailable: torch's device {identity.index} is a {identity.name} but NVML's is a "
            f"{name}; set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    return Found(
        session,
        handle,
        "matched by position only, so it may be another GPU; "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID makes torch and NVML count alike",
    )
