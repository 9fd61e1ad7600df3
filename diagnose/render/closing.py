"""On what data, where and how was it measured? Said once at the end of a report, folded."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from diagnose.analyze.units import AS_READ, BYTES, PERCENT, Unit, percent, scaled
from diagnose.records.header import DataFacts, Gpu, Machine, Reading, WorkloadFacts
from diagnose.render.markdown import escape, prose
from diagnose.render.page import Page, Place, Section
from diagnose.render.table import Cell, Column, Doubt, missing, pairs, share_of, table, written

# Reports lie in reports/<label>/, beside docs/.
DOCS = (
    "[How to read the numbers](../../docs/reading.md), and "
    "[how they are measured](../../docs/method.md)."
)
# The name of a fact tells its unit.
_UNITS = {"bytes": BYTES, "hertz": Unit(suffix="Hz", prefixed=True)}
# These change from run to run, and are told with the method.
_BEFORE = ("memory_used_before_bytes", "utilization_before")


def closing(pages: Sequence[Page]) -> list[Section]:
    """The sections that all records of a report share."""
    jobs = [(page, page.workload) for page in pages if page.workload is not None]
    method = [block for page in pages for block in method_blocks(page, alone=len(pages) == 1)]
    return [
        _section("Data", _once((page, data_blocks(job)) for page, job in jobs)),
        _section("Machine", _once((page, machine_blocks(page.header.machine)) for page in pages)),
        _section("How it was measured", [*method, DOCS]),
    ]


def _section(title: str, blocks: Sequence[str]) -> Section:
    return Section(Place.DETAILS, title, blocks, folded=True)


def _once(told: Iterable[tuple[Page, list[str]]]) -> list[str]:
    """What several records say alike is said once; what differs stands under its question."""
    questions: dict[tuple[str, ...], list[str]] = {}
    for page, blocks in told:
        questions.setdefault(tuple(blocks), []).append(page.question)
    if len(questions) == 1:
        return list(next(iter(questions)))
    return [
        block
        for blocks, asked in questions.items()
        for block in (f"**{escape(' '.join(asked))}**", *blocks)
    ]


def data_blocks(job: WorkloadFacts) -> list[str]:
    facts: DataFacts | None = job.data
    if facts is None:
        reason = job.data_reason or "the workload describes none"
        return [f"No real data were used: {prose(reason)}"]
    lengths = ", ".join(f"{name} {v:g}" for name, v in facts.length_quantiles.items())
    rows: list[tuple[str, Cell]] = [
        ("description", facts.description),
        ("sha256", facts.sha256),
        (facts.unit, facts.sentences),
        ("rows", f"{facts.rows}, of them {facts.erroneous_rows} with errors"),
        (f"length of a sample, {facts.length_unit}", lengths),
        ("padding", f"{percent(facts.padding_share)} of all token slots"),
    ]
    return pairs(rows, "data")


def machine_blocks(where: Machine) -> list[str]:
    """What stays the same from run to run; what does not is told with the method."""
    if where.cpu_cores is None:  # nobody asked: a trace names its device, and little else
        return pairs([("device", where.device_name), *where.versions.items()], "machine")
    rows: list[tuple[str, Cell]] = [
        ("device", f"{where.device_name} ({where.device})"),
        ("system", where.system + (", WSL2" if where.wsl2 else "")),
        ("container", where.container),
        ("CPU", where.cpu_model),
        *(
            [("cores, threads used", f"{where.cpu_cores}, {where.threads}")]
            if where.threads
            else []
        ),
        ("CPU governor", where.cpu_governor),
        ("memory", written(where.memory_bytes, BYTES)),
        ("freed memory", where.allocator),
        ("NVML", where.nvml),
        *where.versions.items(),
    ]
    return [
        *pairs(rows, "machine"),
        *_gpus(where.gpus, where.gpus_reason),
        *_topology(where),
        *_environment(where),
    ]


def _gpus(gpus: Sequence[Gpu], reason: str) -> list[str]:
    if not gpus:
        return [f"No GPU: {prose(reason or 'none was found')}"]

    def column(index: int, gpu: Gpu) -> Column[str]:
        def value(name: str) -> Cell:
            fact: Cell = getattr(gpu, name)
            unit = next((unit for word, unit in _UNITS.items() if word in name), AS_READ)
            return written(fact, unit) if isinstance(fact, Reading) else fact

        return Column(f"GPU {index}", value)

    names = [each.name for each in dataclasses.fields(Gpu) if each.name not in _BEFORE]
    label: Column[str] = Column("", lambda name: name.replace("_", " "))
    return table(names, [label, *itertools.starmap(column, enumerate(gpus))])


def _topology(where: Machine) -> list[str]:
    if len(where.gpus) < 2:
        return []
    links = {frozenset((link.first, link.second)): link for link in where.links}
    count = range(len(where.gpus))

    def column(second: int) -> Column[int]:
        def cell(first: int) -> Cell:
            link = links.get(frozenset((first, second)))
            if first == second:
                return "X"
            if link is None:
                return missing("this link was not read")
            if link.kind.value is None:
                return link.kind
            if link.peer_to_peer.value is None:
                return Doubt(link.kind.value, f"peer to peer: {link.peer_to_peer.reason}")
            return f"{link.kind.value}, {link.peer_to_peer.value}"

        return Column(f"GPU {second}", cell)

    name: Column[int] = Column("link, peer to peer", lambda first: f"GPU {first}")
    return table(count, [name, *map(column, count)])


def _environment(where: Machine) -> list[str]:
    if not where.environment:
        return ["None of the environment variables that matter is set."]
    return pairs(sorted(where.environment.items()), "environment")


def _code(where: Machine) -> list[tuple[str, Cell]]:
    """What the commit held, since its own name is lost in a squash."""
    trees = [f"{name} {tree}" for name, tree in where.code_trees.items()]
    return [("git trees", ", ".join(trees))] if trees else []


def method_blocks(page: Page, *, alone: bool) -> list[str]:
    """How one record came about: its job, its header and what its own verb adds."""
    head, job = page.header, page.workload
    where = head.machine
    rows: list[tuple[str, Cell]] = []
    if job is not None:
        settings = ", ".join(f"{name} {value}" for name, value in job.settings.items())
        rows = [
            ("workload", f"{job.name}, size {job.size}, {scaled(job.parameters, '')} parameters"),
            ("settings", settings),
        ]
    rows += page.method
    if where.cpu_cores is None:
        rows += [("read", head.created), ("method, schema, tool", head.versions)]
        return pairs(rows, "run" if alone else page.question)
    rows += [
        ("effort", head.effort),
        ("seed", head.seed),
        ("measured", head.created),
        ("source", head.source),
        ("method, schema, tool", head.versions),
        ("git commit", where.git_commit),
        *_code(where),
        ("CPU busy before the run", written(where.cpu_busy_before, PERCENT)),
        ("shared memory free", written(where.shared_memory_bytes, BYTES)),
    ]
    if where.memory_used_bytes is not None:
        used = share_of(where.memory_used_bytes, where.memory_bytes)
        rows.append(("memory used before the run", used))
    for index, gpu in enumerate(where.gpus):
        used = share_of(gpu.memory_used_before_bytes, gpu.memory_bytes)
        rows += [
            (f"memory used before, GPU {index}", used),
            (f"utilization before, GPU {index}", written(gpu.utilization_before, PERCENT)),
        ]
    return pairs(rows, "run" if alone else page.question)
