"""What does the report on batch sizes say? A pure function from a record to Markdown."""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyze.batch_size.choice import Answer, judge
from diagnose.analyze.claims.batch_size import judge_batch_claims
from diagnose.analyze.claims.ledger import ledger
from diagnose.analyze.units import number, percent, spread
from diagnose.records.batch_size import BatchSizeRecord, Configuration
from diagnose.records.run import RunRecord
from diagnose.render import machine_tables
from diagnose.render.batch_size import tables
from diagnose.render.markdown import Align, escape, prose, table
from diagnose.render.retell import retell

FIGURE_NAME = "batch_size.svg"
_METHOD = (
    "Each probe runs in a child of the command: a forward pass and four steps of the job on "
    "inputs of full length. Probes share the child until one hangs, dies or leaves memory behind; "
    "then it is replaced. A batch fits if the steps run, if their peak stays within "
    "90 % of the memory that was free before, and if nothing spills: on an accelerator the "
    "fastest step takes at most 1.5 times what a straight line from the next smaller batch leads "
    "to expect, on the CPU nothing is swapped out. The largest is confirmed in a fresh process. "
    "The sweep times all batch sizes in interleaved blocks; gains and shares of the peak are "
    "Hodges-Lehmann estimates of the ratios within blocks with their 95 % intervals. A batch "
    "counts as fast enough only if its whole interval is. No sample is discarded."
)


def render_batch_size(record: BatchSizeRecord) -> str:
    answers = [judge(each) for each in record.configurations]
    run = as_run(record)
    blocks = [
        f"# {escape(record.header.label)}: the batch size of {escape(record.workload.name)} on "
        f"{escape(record.header.machine.device_name)}",
        *machine_tables.no_result(run),
        f"**{prose(answer(record))}**",
        *(tables.answers_table(answers) if answers else []),
        *([f"![Throughput and memory over the batch size]({FIGURE_NAME})"] * has_figure(record)),
    ]
    for each in answers:
        blocks += _configuration(each, alone=len(answers) == 1)
    judged = judge_batch_claims(record, answers)
    blocks += [
        *(["## Claims", *ledger(judged)] if judged else []),
        "## Machine",
        *machine_tables.machine(run),
        "## How it was measured",
        *_method(record),
    ]
    return "\n\n".join(blocks) + "\n"


def answer(record: BatchSizeRecord) -> str:
    """One clause per configuration, the batch to use first."""
    clauses = [_clause(judge(each)) for each in record.configurations]
    text = "; ".join(clauses) + "." if clauses else "Nothing was tried."
    return text if record.complete else f"{text} The run was not finished."


def figure_names(record: BatchSizeRecord) -> tuple[str, ...]:
    return (FIGURE_NAME,) if has_figure(record) else ()


def has_figure(record: BatchSizeRecord) -> bool:
    return any(judge(each).rows for each in record.configurations)


def as_run(record: BatchSizeRecord) -> RunRecord:
    """The sweeps as stages, so that machine and warnings are told as for any other run."""
    stages = tuple(each.sweep for each in record.configurations if each.sweep is not None)
    run = retell(
        record, RunRecord, seed=record.header.seed, workload=record.workload, planned=record.planned
    )
    return replace(run, stages=stages)


def _clause(each: Answer) -> str:
    key = each.configuration.key
    name = "" if key == "as it is" else f"{key}: "
    if each.largest is None:
        return f"{name}no batch size can be used: {each.configuration.reason}"
    fits = f"{each.largest} fits" if each.is_exact else f"at least {each.largest} fits"
    if each.use is None:
        return f"{name}a batch of {fits}; {each.reason}"
    return f"{name}use batch {each.use} ({fits}): {each.reason}"


def _configuration(each: Answer, *, alone: bool) -> list[str]:
    configuration = each.configuration
    title = [] if alone else [f"## {escape(configuration.key)}"]
    level = "##" if alone else "###"
    if not configuration.probes:
        return [*title, prose(configuration.reason)]
    return [
        *title,
        *_inputs(configuration),
        f"{level} Throughput",
        *tables.sweep_table(each),
        *_loader(each),
        f"{level} Memory",
        *tables.memory_table(configuration),
        f"{level} Probes",
        *tables.probes_table(configuration),
        _cost(each),
        f"{level} Rules of thumb",
        *tables.estimates_table(each),
        f"{level} Other ways to search",
        *tables.rivals_table(each),
    ]


def _inputs(configuration: Configuration) -> list[str]:
    """What a job that writes answers was really asked: a cap of tiles is not their number."""
    settings = configuration.settings
    if "prompt_tokens_most" not in settings:
        return []
    most, mean = (float(settings[f"prompt_tokens_{name}"] or 0) for name in ("most", "mean"))
    text = (
        f"Questions have {number(mean, 3)} tokens on average and {number(most, 3)} at most; "
        f"the hardest one is what every batch is made of, and every answer has "
        f"{settings['new_tokens']} tokens."
    )
    if "tiles_most" in settings:
        text = (
            f"max_crops {settings['max_crops']} is only a cap: the pictures have "
            f"{settings['tiles_least']} to {settings['tiles_most']} tiles, "
            f"{number(float(settings['tiles_mean'] or 0), 3)} on average. {text}"
        )
    return [prose(text)]


def _loader(each: Answer) -> list[str]:
    loader = each.configuration.loader
    if loader is None:
        return []
    if each.loader_samples_per_second is None:
        return [f"The loader was not measured: {prose(loader.reason)}."]
    name = loader.measurements[0].name
    rate = spread(each.loader_samples_per_second)
    return [f"The loader ({escape(name)}) brings {rate} samples/s."]


def _cost(each: Answer) -> str:
    """How much of the time was spent on anything but measuring.

    A record does not tell the start of a process from the probe that waited for it.
    """
    whole = each.configuration.seconds
    stages = (each.configuration.sweep, each.configuration.loader)
    measuring = sum(probe.seconds for probe in each.configuration.probes)
    measuring += sum(stage.seconds for stage in stages if stage is not None)
    count = f"{len(each.configuration.probes)} probes"
    if whole <= 0:
        return f"{count}."
    outside = percent(max(0.0, 1 - measuring / whole))
    return (
        f"{count}, {number(whole, 3)} s in all, {outside} of it outside probes and timing. "
        "Where a probe had to wait for a new process, the start counts as the probe's; the first "
        "start of all comes before and counts nowhere."
    )


def _method(record: BatchSizeRecord) -> list[str]:
    job = record.workload
    rows = [
        ["workload", f"{job.name}, size {job.size}, {job.parameters} parameters"],
        ["settings", ", ".join(f"{name} {value}" for name, value in job.settings.items())],
        ["step", record.task],
        ["ranks", str(record.ranks)],
        ["effort", record.header.effort],
        ["seed", str(record.header.seed)],
        [
            "method, schema, tool",
            record.header.versions,
        ],
        ["measured", record.header.created],
        ["source", record.header.source],
        ["planned", ", ".join(record.planned)],
    ]
    align: tuple[Align, ...] = ("left", "left")
    return [table(["run", ""], rows, align), _METHOD]
