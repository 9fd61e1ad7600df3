"""How is each command of the README and of docs/ run in seconds, and which cannot be run here?"""

from __future__ import annotations

from dataclasses import dataclass

TINY = "--smoke --size tiny --device cpu"


@dataclass(frozen=True)
class Small:
    """The line that is run in place of a documented one: all its words, and some to make it small.

    Documented lines with the same small one share its run.
    """

    line: str
    leaves: str = ""  # a pattern of files that must exist afterwards


@dataclass(frozen=True)
class Elsewhere:
    """Why a documented line is not run here, and which test does what it does instead."""

    reason: str
    test: str
    mentions: str  # in that test


SCRIPT = Small(
    # Options need the long form of `diagnose train.py`.
    "diagnose script --seconds 4 --json why.json --label mine train.py --lr 0.1",
    leaves="reports/mine/report.md",
)
DGCA = Small(
    f'make diagnose PYTHON=python ARGS="--workload dgca --stages inference {TINY}"',
    leaves="reports/*-dgca-*/report.md",
)
JOB = Small(
    f"diagnose run --workload my_job.py --stages inference training {TINY} --label before && "
    f"diagnose run --workload my_job.py --stages inference training {TINY} --label before --resume",
    leaves="reports/before/report.md",
)
TRAINING = Small(
    "python -m bench.dgca.preprocess --output data --size small --size tiny --rows 40 && "
    "python -m bench.dgca.train --do-train --preprocessed-train data/train.pt --size small "
    "--size tiny --max-steps 2 --device cpu --output trained",
    leaves="data/train.pt",
)
RENDERED = Small(
    'make report PYTHON=python ARGS="--reports committed" && '
    'make check PYTHON=python ARGS="--allow-dirty --reports committed"',
    leaves="committed/README.md",
)


def in_repository(folder: str, then: str) -> str:
    """Where main has before.py as train.py, and the branch at HEAD after.py, which is faster."""
    return (
        f"export PYTHONPATH=$PWD && git init -q -b main {folder} && "
        f"cp train.py {folder}/before.py && cd {folder} && "
        "git config user.name a && git config user.email a@example.org && "
        "sed 's/^for step/batch = make_batch()\\nfor step/; s/(make_batch())/(batch)/' before.py "
        "> after.py && cp before.py train.py && git add train.py && git commit -qm one && "
        f'git switch -qc change && cp after.py train.py && git commit -am "..." && {then}'
    )


PROVED = Small(
    in_repository(
        "gated",
        "diagnose prove HEAD~1 HEAD --json proof.json --seconds 20 --equal-steps 3 "
        "--fail-if-slower 2% --fail-if-diverges -- train.py",
    ),
    leaves="gated/proof.json",
)
TWO_FILES = Small(
    in_repository(
        "files", "diagnose prove before.py after.py --seconds 2 --equal-steps 3 --json proof.json"
    ),
    leaves="files/proof.json",
)

COMMANDS: dict[str, Small] = {
    "diagnose watch train.py --lr 0.1": Small(
        "diagnose watch --seconds 2 --json seen.json train.py --lr 0.1 100", leaves="seen.json"
    ),
    'git commit -am "..."': PROVED,
    "diagnose prove HEAD~1 HEAD --json proof.json --fail-if-slower 2% --fail-if-diverges "
    "-- train.py": PROVED,
    "diagnose prove main HEAD -- train.py --epochs 1": Small(
        in_repository(
            "commits",
            "diagnose prove main HEAD --seconds 2 --equal-steps 3 -- train.py --epochs 1",
        )
    ),
    "diagnose prove before.py after.py": TWO_FILES,
    "diagnose prove before.py after.py --json proof.json": TWO_FILES,
    "diagnose prove train.py --with autocast": Small(
        in_repository(
            "named", "diagnose prove train.py --with autocast --seconds 2 --equal-steps 3"
        )
    ),
    "diagnose train.py --lr 0.1": SCRIPT,
    "diagnose script --label mine train.py": SCRIPT,
    "diagnose script --json why.json train.py": SCRIPT,
    "python -m diagnose script train.py": SCRIPT,
    "make diagnose": DGCA,
    "make diagnose PYTHON=python": DGCA,
    'make diagnose ARGS="--workload bert"': Small(
        f'make diagnose PYTHON=python ARGS="--workload bert --stages inference {TINY}"',
        leaves="reports/*-bert-*/report.md",
    ),
    "diagnose run --workload my_job.py --label before": JOB,
    "diagnose run --workload my_job.py --stages inference training": JOB,
    "diagnose run --workload my_job.py --label before --resume": JOB,
    "diagnose batch-size --workload my_job.py --sweep 1 2 4 8 16": Small(
        "diagnose batch-size --workload my_job.py --sweep 1 2 4 8 16 --no-auto-adjust-batch-size "
        f"{TINY} --label swept",
        leaves="reports/swept/report.md",
    ),
    "python -m diagnose run --data sentences.tsv": Small(
        f"python -m diagnose run --data sentences.tsv --stages real_data {TINY} --label text",
        leaves="reports/text/report.md",
    ),
    "make optimize": Small(
        f'make optimize PYTHON=python ARGS="--workload my_job.py {TINY} --label one"',
        leaves="reports/one/report.md",
    ),
    "python -m diagnose optimize --workload vqa": Small(
        f"python -m diagnose optimize --workload vqa --only kv_cache {TINY} --label pictures",
        leaves="reports/pictures/report.md",
    ),
    "python -m bench.dgca.preprocess --output data --size small": TRAINING,
    "python -m bench.dgca.train --do-train --preprocessed-train data/train.pt --size small": (
        TRAINING
    ),
    "python -m bench.timeseries.train --csv air.csv --target pm25 --grid": Small(
        "python -m bench.timeseries.train --csv air.csv --target pm25 --grid --epochs 1 "
        "--device cpu"
    ),
    "python -m diagnose batch-size --workload molmo --max-crops-list 1 4 8 12 13 "
    "--memory-limit 640": Small(
        "python -m diagnose batch-size --workload molmo --max-crops-list 1 4 8 12 13 "
        f"--start-from-max-crops 12 --memory-limit 640 --batch-size 1 --no-auto-adjust-batch-size "
        f"{TINY} --sweep 1 --label crops",
        leaves="reports/crops/report.md",
    ),
    "python diagnose/evaluate.py -m checkpoint -d questions.jsonl -b 8 -o evaluation": Small(
        "python diagnose/evaluate.py -m checkpoint -d questions.jsonl -b 8 -o evaluation "
        "--device cpu --max-tokens 4",
        leaves="evaluation/results.json",
    ),
    "python -m diagnose scale --label cpu-dgca --ranks 8 64 512 --link ib400": Small(
        "python -m diagnose scale --label cpu-dgca --ranks 8 64 512 --link ib400 --reports measured"
    ),
    "make report": RENDERED,
    "make check": RENDERED,
}

INSTALLS = Elsewhere("needs the network", "tests/test_install.py", '"install"')
TRACED = Elsewhere("needs your trace", "tests/commands/test_trace.py", '"trace", *map')
OPTIMIZES = Elsewhere("as `make optimize`", "tests/commands/test_optimize.py", '"optimize", "--')
WATCHES = Elsewhere("runs to the end of its job", "tests/commands/test_watch.py", '"--from-step"')

ELSEWHERE: dict[str, Elsewhere] = {
    "diagnose optimize --workload my_job.py": OPTIMIZES,
    "python -m diagnose optimize --only apply_prompt": OPTIMIZES,
    "python -m diagnose optimize --workload timeseries": OPTIMIZES,
    "python -m diagnose batch-size --workload textgen": Elsewhere(
        "as with --workload my_job.py", "tests/bench/generation/test_batch_size.py", "TEXTGEN"
    ),
    **{
        f"torchrun --nproc-per-node=2 {words}": Elsewhere(
            "runs two ranks", f"tests/{test}", mentions
        )
        for words, test, mentions in (
            (
                "--no-python diagnose script train.py",
                "test_install.py",
                '"--no-python", "diagnose", "script"',
            ),
            (
                "diagnose/profile_accuracy.py --max-crops-list 12 13 --output vqa.json",
                "commands/test_evaluation.py",
                'torchrun(\n        "profile_accuracy.py"',
            ),
            ("diagnose/ddp_bandwidth.py", "commands/test_link.py", "torchrun(SCRIPT"),
            ("diagnose/ddp_scaling.py", "commands/test_scaling.py", "torchrun(SCRIPT"),
        )
    },
    **{
        f"python -m bench.prove.{words}": Elsewhere(
            "takes minutes to hours", "tests/bench/test_prove.py", f"bench.prove.{words.split()[0]}"
        )
        for words in (
            "rule",
            "pairs --kind planted",
            "pairs --kind sabotaged",
            "pairs --kind equal --runs 200 --seconds 10 --jobs 2",
            "cost",
            "dgca --label cpu-dgca-prove",
        )
    },
    "diagnose watch --from-step 30 --steps 60 train.py": WATCHES,
    "diagnose watch -m package.train --lr 0.1": Elsewhere(
        "needs your package", "tests/support/framework_runs.py", '"-m", "package.train"'
    ),
    "torchrun --nproc-per-node=2 --no-python diagnose watch train.py": WATCHES,
    'diagnose script --fail-on "input>10%" --fail-on "any>25%" train.py': Elsewhere(
        "its exit code depends on the script", "tests/commands/test_script.py", "--fail-on"
    ),
    "diagnose trace trace.json.gz": TRACED,
    "diagnose trace --json why.json rank0.json rank1.json": TRACED,
    "diagnose trace --label mine traces": TRACED,
    "diagnose trace --perfetto marked.json trace.json.gz": TRACED,
    "pip install .": INSTALLS,
    'pip install -e ".[suite]"': INSTALLS,
    "pip install git+https://github.com/OWNER/torch-diagnose": INSTALLS,
    "make test": Elsewhere("would run itself", "tests/test_workflows.py", '"test"'),
    "make quick": Elsewhere("would run itself", "tests/test_workflows.py", '"test"'),
    "make bench": Elsewhere("is pytest", "tests/bench/test_bench.py", '"bench"'),
    "make accuracy": Elsewhere(
        "takes an hour", "tests/commands/test_accuracy.py", '"accuracy", "--tool"'
    ),
    "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 "
    "diagnose/ddp_bandwidth.py --link-gbit 400": Elsewhere(
        "needs two hosts", "tests/commands/test_two_hosts.py", "bandwidth"
    ),
    "srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=8 "
    "--rdzv-backend=c10d --rdzv-endpoint=$(scontrol show hostnames | head -1):29500 "
    "diagnose/ddp_scaling.py --workload my_job.py": Elsewhere(
        "needs Slurm", "tests/commands/test_two_hosts.py", "scaling"
    ),
}
