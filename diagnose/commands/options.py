"""What can be asked, in words? The verbs and their options; no torch is loaded to list them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from diagnose.analyze.links import LINK_NAMES
from diagnose.commands.batch_size import add_options as add_batch_size_options
from diagnose.commands.script import add_verb as add_script_verb
from diagnose.measure.optimize.optimizer import EXPERIMENT_KEYS
from diagnose.measure.stages import INTERCONNECT, STAGE_KEYS

Action: TypeAlias = Callable[[argparse.Namespace], int]
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

ALL_STAGES = (*STAGE_KEYS, INTERCONNECT)


def build_parser(actions: Mapping[str, Action]) -> argparse.ArgumentParser:
    """The options of every verb; the verb's action becomes `arguments.action`."""
    parser = argparse.ArgumentParser(
        prog="python -m diagnose",
        description="Finds out why a PyTorch job is slow, and proves what fixes it.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_run(verbs)
    _add_optimize(verbs)
    _add_batch_size(verbs)
    _add_scale(verbs)
    add_script_verb(verbs)
    _add_report(verbs)
    _add_check(verbs)
    for name, verb in verbs.choices.items():
        verb.set_defaults(action=actions[name])
    return parser


def _add_verb(
    verbs: Verbs,
    name: str,
    text: str,
    example: str,
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument(
        "--reports",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="where reports live (default: reports)",
    )
    return verb


def _add_run(verbs: Verbs) -> None:
    verb = _add_verb(
        verbs,
        "run",
        "Measure this machine stage by stage and write a report.",
        "python -m diagnose run --workload my_job.py --label before",
    )
    verb.add_argument("--workload", default="bert", help="a built-in one, or your .py file")
    _add_measuring_options(verb, "stage")
    verb.add_argument("--resume", action="store_true", help="go on after an interruption")
    verb.add_argument(
        "--fail-on",
        choices=("warning", "critical"),
        help="exit 1 on a finding of this severity, or on one that cannot be decided",
    )
    verb.add_argument(
        "--stages",
        nargs="+",
        choices=ALL_STAGES,
        default=ALL_STAGES,
        metavar="STAGE",
        help=f"only these: {', '.join(ALL_STAGES)}",
    )


def _add_measuring_options(verb: argparse.ArgumentParser, unit: str) -> None:
    verb.add_argument("--size", help="of the workload: seed, small or tiny for a built-in one")
    verb.add_argument("--device", help="cpu, cuda, ... (default: the accelerator, else cpu)")
    verb.add_argument(
        "-d",
        "--data",
        metavar="FILE",
        help="your own .tsv, .jsonl or .txt sentences, .csv of days, or .jsonl questions",
    )
    verb.add_argument(
        "-m",
        "--model",
        metavar="DIR",
        help="your own model (config, safetensors, tokenizer) for textgen or vqa",
    )
    effort = verb.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "about two minutes (default on the CPU)"),
        ("full", "as long as the protocol asks (default on accelerators)"),
        ("smoke", "a few steps, to try the tool: its numbers mean nothing"),
    ):
        effort.add_argument(f"--{name}", dest="effort", action="store_const", const=name, help=text)
    verb.add_argument("--label", help="name of the report (default: from the device's name)")
    verb.add_argument(
        "--timeout", type=_positive, metavar="SECONDS", help=f"longest time for one {unit}"
    )
    verb.add_argument("--seed", type=_seed, default=0, help="of weights, data order and blocks")
    verb.add_argument("--json", action="store_true", help="print the findings as JSON")


def _add_optimize(verbs: Verbs) -> None:
    verb = _add_verb(
        verbs,
        "optimize",
        "Try every optimisation: are the results equal, and is it faster?",
        "python -m diagnose optimize --only apply_prompt gated_fusion",
    )
    verb.add_argument(
        "--workload", default="dgca", help="dgca, or your .py file whose Workload has a treatment"
    )
    _add_measuring_options(verb, "experiment")
    verb.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help=f"only these; for dgca: {', '.join(EXPERIMENT_KEYS)}",
    )
    verb.add_argument(
        "--samples",
        type=_count_of("samples"),
        metavar="N",
        help="of your whole evaluation: how long it takes, before and after (textgen, vqa)",
    )
    verb.add_argument(
        "--annotations",
        action="store_true",
        help="print GitHub ::warning lines for the source lines to blame",
    )


def _add_batch_size(verbs: Verbs) -> None:
    verb = _add_verb(
        verbs,
        "batch-size",
        "Find the largest batch that fits, and the one worth using.",
        "python -m diagnose batch-size --workload my_job.py --sweep 1 2 4 8 16",
    )
    verb.add_argument("--workload", default="bert", help="a built-in one, or your .py file")
    _add_measuring_options(verb, "probe")
    add_batch_size_options(verb)


def _add_scale(verbs: Verbs) -> None:
    verb = _add_verb(
        verbs,
        "scale",
        "Predict larger clusters from a measured scaling. Needs no torch.",
        "python -m diagnose scale --label amd-epyc-dgca --ranks 8 64 512 --link ib400",
    )
    verb.add_argument("--label", required=True, help="of the report that ddp_scaling.py wrote")
    verb.add_argument(
        "--ranks",
        type=_count_of("ranks"),
        nargs="+",
        default=[8, 64, 512],
        metavar="N",
        help="how many ranks",
    )
    verb.add_argument(
        "--link",
        choices=LINK_NAMES,
        default="measured",
        help="between the ranks (default: as measured)",
    )


def _add_report(verbs: Verbs) -> None:
    verb = _add_verb(
        verbs,
        "report",
        "Render reports again from their data. Needs no torch.",
        "python -m diagnose report",
    )
    verb.add_argument("labels", nargs="*", metavar="LABEL", help="(default: all)")


def _add_check(verbs: Verbs) -> None:
    _add_verb(
        verbs,
        "check",
        "Fail if a report is not what its data render to. Needs no torch.",
        "python -m diagnose check",
    )


def _count_of(what: str) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"'{text}' is no number of {what}; use 1 or more")
        return int(text)

    return count


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of seconds")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to 2**63 - 1")
    return int(text)
