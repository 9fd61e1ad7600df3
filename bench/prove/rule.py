"""How often is the rule that stops a comparison wrong, and how many blocks does it need?

    python -m bench.prove.rule

Simulated machines whose truth is known, with spikes, drift, a busy neighbor and heavy tails;
scripts whose processes differ from start to start, and scripts that slow down step by step, as
`prove` times them; the blocks of every committed `optimize.json`, judged again; and what other bets
would need.
Writes what it finds to reports/prove_rule.md, with the 95 % interval of every share.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.kept import REPORTS, table
from bench.same_code import share_interval as exact_interval
from diagnose.commands.shared.arguments import count as whole_count
from diagnose.records.sequential import Block, _log_odds, decide, ratio_interval
from diagnose.records.stats import SMALLEST_MARGIN, log_ratio_interval

MOST_BLOCKS = 60
# Of the rule that `optimize` had before this one.
FEWEST_BLOCKS, PRECISE_SHARE = 12, 0.1
NOISE = 0.02
MACHINES = ("quiet", "noisy", "drift", "neighbor", "spikes", "heavy tails")
EFFECTS = (1.03, 1.05, 1.2, 2.0)

Series = NDArray[np.floating[Any]]
Rule = Callable[[Sequence[Block]], str]


class Session(NamedTuple):
    """One comparison, from its first block to its verdict."""

    verdict: str
    blocks: int
    covered: bool


def simulate(machine: str, dice: np.random.Generator) -> Series:
    """Logarithms of the times of all windows, in blocks of three, of two equal sides."""
    count = 3 * MOST_BLOCKS
    spread = 4 * NOISE if machine == "noisy" else NOISE
    noise: Series = dice.normal(0, spread, count)
    if machine == "drift":
        noise = noise + np.linspace(0, 0.3, count) * dice.choice([-1, 1])
    elif machine == "neighbor":
        level, memory = dice.normal(0, 0.05), 0.9
        for index in range(count):
            level = memory * level + dice.normal(0, NOISE)
            noise[index] += level
    elif machine == "spikes":
        noise = noise + (dice.random(count) < 0.15) * dice.exponential(0.3, count)
    elif machine == "heavy tails":
        noise = NOISE * dice.standard_t(2, count)
    return noise.reshape(MOST_BLOCKS, 3)


def anytime(blocks: Sequence[Block]) -> str:
    return decide(ratio_interval(blocks))


def former(blocks: Sequence[Block]) -> str:
    """Stopped on the width of the interval, then judged it once; used one window of two."""
    if len(blocks) < FEWEST_BLOCKS:
        return "INCONCLUSIVE"
    before, again, after = ([block[side] for block in blocks] for side in range(3))
    control, result = log_ratio_interval(before, again), log_ratio_interval(before, after)
    assert control.low is not None
    assert control.high is not None
    assert result.low is not None
    assert result.high is not None
    margin = max(SMALLEST_MARGIN, abs(control.low), abs(control.high))
    wanted = max(margin / 2, PRECISE_SHARE * abs(result.center))
    half = (result.high - result.low) / 2
    if half > wanted and len(blocks) < MOST_BLOCKS:
        return "INCONCLUSIVE"
    if result.low > math.log1p(margin):
        return "FASTER"
    if result.high < -math.log1p(margin):
        return "SLOWER"
    return "SAME" if max(-result.low, result.high) <= math.log1p(margin) else "UNDECIDED"


def run_session(rule: Rule, blocks: Sequence[Block], truth: float, first: int = 4) -> Session:
    """Looks after every block, and stops at the first verdict."""
    verdict, seen = "INCONCLUSIVE", len(blocks)
    for seen in range(min(first, len(blocks)), len(blocks) + 1):
        verdict = rule(blocks[:seen])
        if verdict != "INCONCLUSIVE":
            break
    interval = ratio_interval(blocks[:seen])
    covered = interval.ends is None or interval.ends[0] <= truth <= interval.ends[1]
    return Session(verdict, seen, covered)


def sessions(rule: Rule, machine: str, truth: float, count: int) -> Iterator[Session]:
    dice = np.random.default_rng([MACHINES.index(machine), round(1000 * truth)])
    for _ in range(count):
        # The order within a block is random, as it is measured.
        times = np.exp(dice.permuted(simulate(machine, dice), axis=1))
        times[:, 2] /= truth
        yield run_session(rule, [Block(*map(float, row)) for row in times], truth)


# --- as `prove` times two processes ---
# Whatever a process keeps from its start moves all of its windows, by this much in the logarithm.
START_SPREADS = (0.0, 0.02, 0.1, 0.4)
GROWTHS = (0.0, 0.002, 0.01)  # per window of a process that slows down by itself


def prove_once(dice: np.random.Generator, spread: float, growth: float, *, confirmed: bool) -> str:
    """The verdict about two equal scripts, in one pair of processes or in two."""
    verdicts = []
    for _ in range(2 if confirmed else 1):
        offsets = dice.normal(0, spread, 2)
        taken, blocks = [0, 0], []
        for _ in range(MOST_BLOCKS):
            # As `Session._draw_order` does it, or two of the side before in every block.
            fewer = [side for side in (0, 1) if taken[side] == min(taken)]
            twice = int(dice.choice(fewer)) if confirmed else 0
            times: tuple[list[float], list[float]] = ([], [])
            for side in dice.permutation([0, 1, twice]):
                taken[side] += 1
                level = offsets[side] + growth * taken[side] + dice.normal(0, NOISE)
                times[side].append(math.exp(level))
            odd = 1 - twice
            pair = [*times[twice], *times[odd]]
            blocks.append(Block(*(pair if twice == 0 else [1 / each for each in pair])))
            verdicts.append(anytime(blocks))
            if verdicts[-1] != "INCONCLUSIVE":
                break
        else:
            return "INCONCLUSIVE"
    return (
        verdicts[-1] if len({e for e in verdicts if e != "INCONCLUSIVE"}) == 1 else "INCONCLUSIVE"
    )


def starts_table(count: int) -> list[str]:
    rows = []
    for spread in START_SPREADS:
        for growth in GROWTHS:
            shares = []
            for confirmed in (False, True):
                dice = np.random.default_rng([round(1e4 * spread), round(1e4 * growth), confirmed])
                found = [
                    prove_once(dice, spread, growth, confirmed=confirmed) for _ in range(count)
                ]
                wrong = sum(each in ("FASTER", "SLOWER") for each in found)
                shares.append(share_interval(wrong, count))
            rows.append((f"{100 * spread:g} %", f"{100 * growth:g} %", *shares))
    titles = (
        ">spread of starts",
        ">slower per window",
        ">false verdict, one pair of processes, two windows of the side before",
        ">two pairs, balanced windows, as `prove` does it",
    )
    return table(titles, rows)


# --- other bets on the rank, and one on the size ---
BELIEFS = ((3.0, 1.0, 0.3), (1.0, 1.0, 1.0), (8.0, 2.0, 0.5), (1.0, 0.5, 0.25))


def belief_table(count: int) -> list[str]:
    """Blocks until "faster" is proven, where the change is the fastest of three so often."""
    chances = ((1.0, 0.0, 0.0), (0.8, 0.15, 0.05), (0.6, 0.25, 0.15))
    named = (">" + "/".join(f"{100 * p:.0f}" for p in each) for each in chances)
    rows = []
    for belief in BELIEFS:
        cells = []
        for chance in chances:
            dice = np.random.default_rng(1)
            needed = [_blocks_needed(dice, chance, belief) for _ in range(count)]
            cells.append(f"{statistics.median(needed):.0f}")
        rows.append((belief, *cells))
    return table(("<belief", *named), rows)


def _blocks_needed(
    dice: np.random.Generator, chance: Sequence[float], belief: Sequence[float]
) -> int:
    counts = [0, 0, 0]
    for number in range(1, 10 * MOST_BLOCKS):
        counts[int(dice.choice(3, p=chance))] += 1
        odds = [_log_odds(counts, each) for each in (belief, belief[::-1])]
        if np.logaddexp(odds[0], odds[1]) - math.log(2) >= math.log(100):
            return number
    return 10 * MOST_BLOCKS


def share_interval(hits: int, count: int) -> str:
    """A share with its exact 95 % interval."""
    low, high = exact_interval(hits, count)
    return f"{100 * hits / count:.2f} % [{100 * low:.2f}, {100 * high:.2f}]"


def equal_table(count: int) -> list[str]:
    rows: list[tuple[str, ...]] = []
    false = missed = 0
    for machine in MACHINES:
        found = list(sessions(anytime, machine, 1.0, count))
        wrong = sum(each.verdict in ("FASTER", "SLOWER") for each in found)
        out = sum(not each.covered for each in found)
        false, missed = false + wrong, missed + out
        same = sum(each.verdict == "SAME" for each in found)
        blocks = statistics.median(each.blocks for each in found)
        shares = share_interval(wrong, count), share_interval(out, count)
        rows.append((machine, *shares, f"{100 * same / count:.0f} %", f"{blocks:.0f}"))
    total = count * len(MACHINES)
    rows.append(("all", share_interval(false, total), share_interval(missed, total), "", ""))
    titles = ("<machine", ">false verdict", ">interval misses", ">no difference proven")
    return table((*titles, ">median blocks"), rows)


def effect_table(count: int) -> list[str]:
    rows = []
    for machine in MACHINES:
        for truth in EFFECTS:
            new = list(sessions(anytime, machine, truth, count))
            old = list(sessions(former, machine, truth, count))
            found, before = (sum(e.verdict == "FASTER" for e in each) for each in (new, old))
            wrong = sum(each.verdict in ("SLOWER", "SAME") for each in new)
            blocks = [statistics.median(e.blocks for e in each) for each in (new, old)]
            shares = f"{100 * found / count:.0f} %", share_interval(wrong, count)
            former_rule = f"{100 * before / count:.0f} %", f"{blocks[1]:.0f}"
            rows.append((machine, f"{truth:g}", *shares, f"{blocks[0]:.0f}", *former_rule))
    titles = ("<machine", ">ratio", ">found", ">wrong", ">median blocks")
    return table((*titles, ">found by the former rule", ">its median blocks"), rows)


def replay_table() -> list[str]:
    """Every comparison that was kept, judged by both rules on the same blocks."""
    both: Counter[tuple[str, str]] = Counter()
    needed: list[tuple[int, int]] = []
    for path in sorted(REPORTS.glob("*/optimize.json")):
        for each in json.loads(path.read_text(encoding="utf-8"))["comparisons"]:
            sides = [each.get(name) for name in ("before", "control", "after")]
            if not all(sides):
                continue
            times = [
                [seconds / timing["steps_per_slot"] for seconds in timing["slot_seconds"]]
                for timing in (side["timing"] for side in sides)
            ]
            blocks = [Block(*row) for row in zip(*times, strict=False)]
            new, old = (run_session(rule, blocks, 1.0) for rule in (anytime, former))
            both[old.verdict, new.verdict] += 1
            needed.append((old.blocks, new.blocks))
    rows: list[tuple[object, ...]] = [(*rules, count) for rules, count in sorted(both.items())]
    if needed:
        old_median, new_median = (statistics.median(side) for side in zip(*needed, strict=True))
        rows.append((f"median blocks {old_median:g}", f"{new_median:g}", len(needed)))
    return table(("<former rule", "<anytime rule", ">comparisons"), rows)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    text = "comparisons of two equal sides on each machine (default: %(default)s)"
    parser.add_argument("--sessions", type=whole_count, default=1700, metavar="N", help=text)
    parser.add_argument("--output", type=Path, default=REPORTS / "prove_rule.md")
    options = parser.parse_args(words)
    effects = max(1, options.sessions // 20)
    blocks = [
        "# How often is the anytime rule wrong?",
        f"Written by `python -m bench.prove.rule --sessions {options.sessions}`. "
        f"Two equal sides, {options.sessions} comparisons on each simulated machine, up to "
        f"{MOST_BLOCKS} blocks, looked at after every one:",
        "\n".join(equal_table(options.sessions)),
        f"A real difference, {effects} comparisons each, beside the former rule of `optimize`:",
        "\n".join(effect_table(effects)),
        "The blocks of every committed `optimize.json`, judged again:",
        "\n".join(replay_table()),
        f"Two equal scripts as `prove` times them, {effects} comparisons each, where the level of "
        "a process is drawn at its start, and where it slows down by itself. Two pairs of "
        "processes that are both off agree in their direction half of the time, so that starts may "
        "differ by little; [pairs](prove_pairs.md) tells what real scripts do:",
        "\n".join(starts_table(effects)),
        "Which bet? The rule believes (3, 1, 0.3) that the change is the first, the middle and the "
        f"last of three. Median blocks to a proof, {effects} runs each, by how often it really is "
        "(in percent):",
        "\n".join(belief_table(effects)),
    ]
    options.output.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
