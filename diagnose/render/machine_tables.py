"""Where, on what data and how was it measured? Every recorded fact, or why it is unknown."""

from __future__ import annotations

from diagnose.analyze.units import number, percent, scaled
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Fact, Gpu, Machine, Reading
from diagnose.records.run import RunRecord
from diagnose.render.markdown import Align, Footnotes, Markup, escape, prose, table

_TEXT: tuple[Align, ...] = ("left", "left")


def no_result(record: RunRecord | OptimizeRecord) -> list[str]:
    """What must stand above numbers that are none."""
    blocks = []
    if record.header.source != "hardware":
        blocks.append(
            f"**This is no result: it was measured on a {escape(record.header.source)}, "
            "to test the tool itself.**"
        )
    if record.header.effort == "smoke":
        blocks.append("**This is no result: a smoke run takes too few steps to mean anything.**")
    return blocks


def data(record: RunRecord) -> list[str]:
    facts = record.workload.data
    if facts is None:
        reason = record.workload.data_reason or "the workload describes none"
        return [f"No real data were used: {prose(reason)}"]
    lengths = ", ".join(f"{name} {v:g}" for name, v in facts.length_quantiles.items())
    rows = [
        ["description", facts.description],
        ["sha256", facts.sha256],
        [facts.unit, str(facts.sentences)],
        ["rows", f"{facts.rows}, of them {facts.erroneous_rows} with errors"],
        [f"length of a sample, {facts.length_unit}", lengths],
        ["padding", f"{percent(facts.padding_share)} of all token slots"],
    ]
    return [table(["data", ""], rows, _TEXT)]


def machine(record: RunRecord) -> list[str]:
    where = record.header.machine
    notes = Footnotes()
    rows = [
        ["device", f"{where.device_name} ({where.device})"],
        ["system", where.system + (", WSL2" if where.wsl2 else "")],
        ["container", _fact(where.container, notes)],
        ["CPU", _fact(where.cpu_model, notes)],
        ["cores, threads used", f"{where.cpu_cores}, {where.threads}"],
        ["CPU governor", _fact(where.cpu_governor, notes)],
        ["memory", _bytes(where.memory_bytes, notes)],
        ["freed memory", _fact(where.allocator, notes)],
        ["shared memory free", _bytes(where.shared_memory_bytes, notes)],
        ["CPU busy before the run", _share(where.cpu_busy_before, notes)],
        ["NVML", _fact(where.nvml, notes)],
        ["git commit", _fact(where.git_commit, notes)],
        *([name, _fact(fact, notes)] for name, fact in where.versions.items()),
    ]
    blocks = [table(["machine", ""], rows, _TEXT)]
    if where.gpus:
        blocks.append(_gpus(where, notes))
    else:
        blocks.append(f"No GPU: {prose(where.gpus_reason or 'none was found')}")
    if notes.lines():
        blocks.append("\n".join(notes.lines()))
    return blocks + _topology(where) + _environment(where)


def method(record: RunRecord) -> list[str]:
    slots = [
        len(measurement.timing.slot_seconds)
        for stage in record.stages
        for measurement in stage.measurements
    ]
    fewest, most = (min(slots), max(slots)) if slots else (0, 0)
    count = str(most) if fewest == most else f"{fewest} to {most}"
    job = record.workload
    settings = ", ".join(f"{name} {value}" for name, value in job.settings.items())
    rows = [
        ["workload", f"{job.name}, size {job.size}, {job.parameters} parameters"],
        ["settings", settings],
        ["effort", record.header.effort],
        ["slots per measurement", count],
        ["seed", str(record.header.seed)],
        [
            "method, schema, tool",
            record.header.versions,
        ],
        ["measured", record.header.created],
        ["source", record.header.source],
        ["stages planned", ", ".join(record.planned)],
        ["seconds", number(sum(stage.seconds for stage in record.stages), 3)],
    ]
    notes = [
        f"- {prose(stage.key)}: {prose(note)}"
        for stage in record.stages
        for note in stage.notes
        if stage.key != "ceilings"
    ]
    text = (
        "Each slot times several steps as a whole by the wall clock, with the device "
        "synchronised before and after, once warm-up is steady. Result and reference alternate "
        "in random order. Slots are added until the interval is narrow enough or time is up. "
        "No sample is discarded."
    )
    return [table(["run", ""], rows, _TEXT), text, *(["\n".join(notes)] if notes else [])]


def _gpus(where: Machine, notes: Footnotes) -> str:
    def facts(gpu: Gpu) -> dict[str, str]:
        return {
            "name": gpu.name,
            "UUID (hashed)": gpu.uuid_hash,
            "NVML index": _plain(gpu.nvml_index, notes),
            "compute capability": _fact(gpu.compute_capability, notes),
            "memory": _bytes(gpu.memory_bytes, notes),
            "memory used before": _bytes(gpu.memory_used_before_bytes, notes),
            "utilisation before": _share(gpu.utilization_before, notes),
            "power limit W": _plain(gpu.power_limit_watts, notes),
            "default limit W": _plain(gpu.power_limit_default_watts, notes),
            "lowest limit W": _plain(gpu.power_limit_min_watts, notes),
            "highest limit W": _plain(gpu.power_limit_max_watts, notes),
            "highest SM clock": _unit(gpu.sm_hertz_max, "Hz", notes),
            "highest memory clock": _unit(gpu.memory_hertz_max, "Hz", notes),
            "PCIe generation": _plain(gpu.pcie_generation, notes),
            "PCIe generation, highest": _plain(gpu.pcie_generation_max, notes),
            "PCIe width": _plain(gpu.pcie_width, notes),
            "PCIe width, highest": _plain(gpu.pcie_width_max, notes),
            "ECC": _fact(gpu.ecc, notes),
            "MIG": _fact(gpu.mig, notes),
            "persistence": _fact(gpu.persistence, notes),
            "compute mode": _fact(gpu.compute_mode, notes),
            "energy counter period s": _plain(gpu.energy_period_seconds, notes),
        }

    columns = [facts(gpu) for gpu in where.gpus]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return table(["", *(f"GPU {index}" for index in range(len(columns)))], rows)


def _topology(where: Machine) -> list[str]:
    if len(where.gpus) < 2:
        return []
    notes = Footnotes()
    links = {frozenset((link.first, link.second)): link for link in where.links}

    def cell(first: int, second: int) -> str:
        link = links.get(frozenset((first, second)))
        if first == second:
            return "X"
        if link is None:
            return notes.missing("this link was not read")
        return Markup(f"{_cell(link.kind, notes)}, {_cell(link.peer_to_peer, notes)}")

    count = range(len(where.gpus))
    rows = [[f"GPU {i}", *(cell(i, j) for j in count)] for i in count]
    text = table(["link, peer to peer", *(f"GPU {i}" for i in count)], rows)
    return [text, *(["\n".join(notes.lines())] if notes.lines() else [])]


def _environment(where: Machine) -> list[str]:
    if not where.environment:
        return ["None of the environment variables that matter is set."]
    return [table(["environment", ""], sorted(where.environment.items()), _TEXT)]


def _cell(fact: Fact, notes: Footnotes) -> Markup:
    return notes.missing(fact.reason) if fact.value is None else escape(fact.value)


def _fact(fact: Fact, notes: Footnotes) -> str:
    return notes.missing(fact.reason) if fact.value is None else fact.value


def _plain(reading: Reading, notes: Footnotes) -> str:
    if reading.value is None:
        return notes.missing(reading.reason)
    return notes.doubt(f"{reading.value:g}", reading.reason)


def _unit(reading: Reading, unit: str, notes: Footnotes) -> str:
    return notes.missing(reading.reason) if reading.value is None else scaled(reading.value, unit)


def _bytes(reading: Reading, notes: Footnotes) -> str:
    return _unit(reading, "B", notes)


def _share(reading: Reading, notes: Footnotes) -> str:
    return notes.missing(reading.reason) if reading.value is None else percent(reading.value)
