"""A sample of a product of options in which every two options meet: far smaller, and the same every time."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def cross(options: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    """Every allowed combination of one option for each name."""
    cases = (dict(zip(options, values, strict=True)) for values in product(*options.values()))
    return [case for case in cases if allowed(case)]


def pairs(case: Case) -> set[tuple[str, ...]]:
    """The pairs of (name, option) that a case tries together."""
    return {(a, repr(case[a]), b, repr(case[b])) for a, b in combinations(case, 2)}


def pairwise(cases: Sequence[Case], seed: int = 0) -> list[Case]:
    """Greedily, the case with the most pairs not seen so far, until all pairs of `cases` have been seen."""
    shuffled = [(case, pairs(case)) for case in random.Random(seed).sample(cases, len(cases))]
    missing = set[tuple[str, ...]]().union(*(tried for _, tried in shuffled))
    chosen: list[Case] = []
    while missing:
        case, tried = max(shuffled, key=lambda candidate: len(candidate[1] & missing))
        chosen.append(case)
        missing -= tried
    return chosen
