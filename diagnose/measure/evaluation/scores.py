"""How good is an answer? The usual scores, each from its definition.

Words are what BLEU and ROUGE count: runs of letters and digits in lower case, and every Han
character or kana by itself, because Chinese and Japanese are written without spaces.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LONGEST_BLEU_NGRAM = 4  # Papineni et al. 2002
# VQA v2, TextVQA and OK-VQA ask ten people; an answer that three of them gave is fully right.
ANNOTATORS = 10
AGREEING_ANNOTATORS = 3

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u9fff\uf900-\ufaff]+")
_NOT_WORD = re.compile(r"[^\w\s]")
_ARTICLES = frozenset(("a", "an", "the"))
_DIGITS = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten".split()  # noqa: SIM905
    )
}


@dataclass(frozen=True)
class Judged:
    """One answer beside every reference that counts as right."""

    text: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """A number between 0 and 1, or None with the reason."""

    value: float | None
    reason: str = ""


def score(metric: str, judged: Sequence[Judged]) -> dict[str, Score]:
    """Every score of one metric; ROUGE has three."""
    if not judged:
        return dict.fromkeys(METRICS[metric], Score(None, "nothing was answered"))
    return {name: rule(judged) for name, rule in METRICS[metric].items()}


def exact_match(text: str, references: Sequence[str]) -> float:
    """1 if it is one of the references, apart from white space."""
    return float(any(text.split() == each.split() for each in references))


def vqa_accuracy(text: str, references: Sequence[str]) -> float:
    """With ten annotators the official rule; with fewer references, any of them is right.

    The rule: an annotator is left out, the answer is as right as a third of the others who gave
    it, at most 1, and this is the mean over whom to leave out.
    """
    return _agreement(_normalize(text), [_normalize(each) for each in references])


def vqa_accuracies(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Of many answers at once: what several of them or their references say is read once."""
    distinct = {*texts, *(each for row in references for each in row)}
    normal = {each: _normalize(each) for each in distinct}
    return [
        _agreement(normal[text], [normal[each] for each in row])
        for text, row in zip(texts, references, strict=True)
    ]


def _agreement(given: str, wanted: Sequence[str]) -> float:
    matching = wanted.count(given)
    if len(wanted) < ANNOTATORS:
        return float(matching > 0)
    left = [matching - (each == given) for each in wanted]
    return statistics.fmean(min(1.0, count / AGREEING_ANNOTATORS) for count in left)


def bleu(judged: Sequence[Judged]) -> Score:
    """Of the whole corpus, without smoothing: 0 if no four words in a row are right anywhere."""
    right, made = [0] * LONGEST_BLEU_NGRAM, [0] * LONGEST_BLEU_NGRAM
    length = nearest = 0
    for each in judged:
        words = split_words(each.text)
        references = [split_words(reference) for reference in each.references]
        length += len(words)
        # Of two that are equally near, the shorter.
        nearest += min((abs(len(one) - len(words)), len(one)) for one in references)[1]
        for place in range(LONGEST_BLEU_NGRAM):
            grams = count_ngrams(words, place + 1)
            allowed: Counter[tuple[str, ...]] = Counter()
            for one in references:
                allowed |= count_ngrams(one, place + 1)
            right[place] += (grams & allowed).total()
            made[place] += grams.total()
    if not all(made):
        return Score(None, f"no answer has {LONGEST_BLEU_NGRAM} words, so BLEU is not defined")
    if not all(right):
        return Score(0.0)
    precision = sum(math.log(r / m) for r, m in zip(right, made, strict=True)) / LONGEST_BLEU_NGRAM
    return Score(math.exp(precision + min(0.0, 1 - nearest / length)))


def rouge_n(text: str, reference: str, size: int) -> float:
    """F1 of the n-grams that both have."""
    made, wanted = (count_ngrams(split_words(each), size) for each in (text, reference))
    return _f1((made & wanted).total(), made.total(), wanted.total())


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest sequence of words that both have in this order, gaps allowed."""
    made, wanted = split_words(text), split_words(reference)
    lengths = [0] * (len(wanted) + 1)
    for word in made:
        diagonal = 0
        for place, other in enumerate(wanted):
            above = lengths[place + 1]
            lengths[place + 1] = diagonal + 1 if word == other else max(above, lengths[place])
            diagonal = above
    return _f1(lengths[-1], len(made), len(wanted))


def split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def count_ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def _f1(common: int, made: int, wanted: int) -> float:
    return 2 * common / (made + wanted) if common else 0.0


def _normalize(text: str) -> str:
    """As the VQA evaluation does: case, punctuation, articles and number words do not count."""
    words = _NOT_WORD.sub("", text.lower()).split()
    return " ".join(_DIGITS.get(word, word) for word in words if word not in _ARTICLES)


def _mean(rule: Callable[[str, Sequence[str]], float]) -> Callable[[Sequence[Judged]], Score]:
    return lambda judged: Score(
        statistics.fmean(rule(each.text, each.references) for each in judged)
    )


def _mean_of_best(rule: Callable[[str, str], float]) -> Callable[[Sequence[Judged]], Score]:
    """Of several references the nearest one counts (Lin 2004)."""
    return _mean(lambda text, references: max(rule(text, each) for each in references))


# In the order in which --help lists them and results show them.
METRICS: Mapping[str, Mapping[str, Callable[[Sequence[Judged]], Score]]] = {
    "exact_match": {"exact_match": _mean(exact_match)},
    "bleu": {"bleu": bleu},
    "rouge": {
        "rouge1": _mean_of_best(lambda text, reference: rouge_n(text, reference, 1)),
        "rouge2": _mean_of_best(lambda text, reference: rouge_n(text, reference, 2)),
        "rougeL": _mean_of_best(rouge_l),
    },
    "vqa_accuracy": {"vqa_accuracy": _mean(vqa_accuracy)},
}
