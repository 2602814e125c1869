"""Does the paper's order of the methods appear? Pseudo supervision before paired data before Seq-CVAE (attn)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from coscap.report.methods import Measured

ORDER = ("pseudo", "paired", "seq_cvae")


@dataclass(frozen=True)
class Check:
    """One figure of the methods in the paper's order."""

    title: str
    name: str  # of the figure
    higher: bool  # whether more is better
    values: tuple[tuple[str, float], ...]  # role and mean, best expected first
    holds: bool  # each is better than the next
    surely: bool  # each by more than two standard errors over seeds


def checks(found: Sequence[Measured], samples: int) -> list[Check]:
    """The checks that these methods allow; the first run of each role counts."""
    by_role = {each.method.role: each for each in reversed(found)}
    roles = [role for role in ORDER if role in by_role]
    if len(roles) < 2:
        return []
    asked = [(f"best of {samples} (oracle) CIDEr", f"oracle/{samples}/CIDEr", True)]
    for n in sorted({min(20, samples), samples}):
        asked.append((f"mBLEU-4, best 5 of {n}", f"best5/{n}/mBLEU-4-corpus", False))
        asked.append((f"Div-2, best 5 of {n}", f"best5/{n}/Div-2", True))
    return [
        _check(title, name, higher, [by_role[role] for role in roles])
        for title, name, higher in asked
        if all(name in by_role[role].mean for role in roles)
    ]


def _check(title: str, name: str, higher: bool, found: list[Measured]) -> Check:
    sign = 1.0 if higher else -1.0
    gaps = [sign * (one.mean[name] - other.mean[name]) for one, other in pairwise(found)]
    errors = [
        2.0 * sqrt(_squared_error(one, name) + _squared_error(other, name)) for one, other in pairwise(found)
    ]
    return Check(
        title,
        name,
        higher,
        tuple((each.method.role, each.mean[name]) for each in found),
        all(gap > 0 for gap in gaps),
        all(name in each.deviation for each in found)
        and all(gap > error for gap, error in zip(gaps, errors, strict=True)),
    )


def _squared_error(measured: Measured, name: str) -> float:
    """Of the mean over seeds; 0 where there is one seed only."""
    return measured.deviation.get(name, 0.0) ** 2 / max(1, len(measured.by_seed))
