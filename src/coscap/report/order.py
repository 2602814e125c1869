"""Which method is better: the paper's order of its own systems, and the places of all that were measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt

from coscap.metrics.intervals import ScoreDifference
from coscap.pages import table
from coscap.report.build import Measured
from coscap.report.methods import PUBLISHED_AS
from coscap.report.tables import DASH, published_value

ORDER = ("pseudo", "paired", "seq_cvae")  # the paper's, best first


@dataclass(frozen=True)
class OrderCheck:
    """One figure of the methods in the paper's order."""

    title: str
    name: str  # of the figure
    higher: bool  # whether more is better
    values: tuple[tuple[str, float], ...]  # role and mean, best expected first
    holds: bool  # each is better than the next
    surely: (
        bool  # each by more than two standard errors over seeds and by more than the interval over pictures
    )


def checks(found: Sequence[Measured], samples: int) -> list[OrderCheck]:
    """The checks that these methods allow; the first run of each role counts."""
    by_role = {each.method.role: each for each in reversed(found)}
    roles = [role for role in ORDER if role in by_role]
    if len(roles) < 2:
        return []
    wanted = [(f"best of {samples} (oracle) CIDEr", f"oracle/{samples}/CIDEr", True)]
    for n in sorted({min(20, samples), samples}):
        wanted.append((f"mBLEU-4, best 5 of {n}", f"best5/{n}/mBLEU-4-corpus", False))
        wanted.append((f"Div-2, best 5 of {n}", f"best5/{n}/Div-2", True))
    return [
        _check(title, name, higher, [by_role[role] for role in roles])
        for title, name, higher in wanted
        if all(name in by_role[role].mean for role in roles)
    ]


def _check(title: str, name: str, higher: bool, found: list[Measured]) -> OrderCheck:
    sign = 1.0 if higher else -1.0
    gaps = [sign * (one.mean[name] - other.mean[name]) for one, other in pairwise(found)]
    errors = [
        2.0 * sqrt(_squared_error(one, name) + _squared_error(other, name)) for one, other in pairwise(found)
    ]
    return OrderCheck(
        title,
        name,
        higher,
        tuple((each.method.role, each.mean[name]) for each in found),
        all(gap > 0 for gap in gaps),
        all(name in each.deviation for each in found)
        and all(gap > error for gap, error in zip(gaps, errors, strict=True))
        and all(
            (step := one.minus(other, name)) is not None and step.clear for one, other in pairwise(found)
        ),
    )


def _squared_error(measured: Measured, name: str) -> float:
    """Of the mean over seeds; 0 where there is one seed only."""
    return measured.deviation.get(name, 0.0) ** 2 / max(1, len(measured.by_seed))


def order_table(found: Sequence[OrderCheck], samples: int) -> str:
    """The order check: ours with its verdict, and the paper's numbers."""
    rows = []
    for check in found:
        sign = ">" if check.higher else "<"
        ours = f" {sign} ".join(f"{PUBLISHED_AS.get(role, role)} {mean:.3f}" for role, mean in check.values)
        verdict = "yes" if check.holds else "**no**"
        if check.holds and not check.surely:
            verdict = "yes, within the noise"
        rows.append([check.title, f"{ours}?", verdict, _paper_order(check, samples)])
    return table(["", "ours", "holds", "paper"], rows, left=4)


def _paper_order(check: OrderCheck, samples: int) -> str:
    values = []
    for role, _ in check.values:
        method = PUBLISHED_AS.get(role)
        if check.name.startswith("oracle"):
            values.append(published_value("oracle", "CIDEr", method=method, samples=samples))
        else:
            name = "mBLEU" if "mBLEU" in check.name else "Div-2"
            values.append(published_value("diversity", name, method=method))
    return ", ".join(DASH if value is None else f"{value:g}" for value in values)


@dataclass(frozen=True)
class Figured:
    """A figure that methods are put in order by."""

    title: str
    name: str
    published: tuple[str, str, int | None]  # table and metric of the paper, and of how many samples
    digits: int = 3

    def paper(self, measured: Measured) -> float | None:
        """What the paper has for this method."""
        where, metric, samples = self.published
        fields = {} if samples is None else {"samples": samples}
        return published_value(where, metric, method=PUBLISHED_AS.get(measured.method.role), **fields)


def places(found: Sequence[Measured], budgets: Sequence[int]) -> str:
    """All methods in the order of some figures, each with what it is ahead of the next by; empty where the paper has
    fewer than three of them."""
    small = budgets[0]
    wanted = [
        Figured(f"Best of {n} captions, CIDEr", f"oracle/{n}/CIDEr", ("oracle", "CIDEr", n)) for n in budgets
    ]
    wanted += [
        Figured(
            f"Best of {small} after re-ranking, CIDEr",
            f"consensus/{small}/CIDEr",
            ("consensus", "CIDEr", None),
        ),
        Figured(f"Div-2 of the best five of {small}", f"best5/{small}/Div-2", ("diversity", "Div-2", None)),
    ]
    parts = []
    for each in wanted:
        having = [measured for measured in found if each.name in measured.mean]
        if sum(each.paper(measured) is not None for measured in having) >= 3:
            parts += [f"### {each.title}", _place_table(having, each), _pairs(having, each)]
    return "\n\n".join(parts)


def _place_table(found: Sequence[Measured], figure: Figured) -> str:
    name = figure.name
    ranked = sorted(found, key=lambda each: -each.mean[name])
    published = sorted({value for each in found if (value := figure.paper(each)) is not None}, reverse=True)
    rows = []
    for place, each in enumerate(ranked, 1):
        ahead = each.minus(ranked[place], name) if place < len(ranked) else None
        value = figure.paper(each)
        theirs = DASH if value is None else f"{published.index(value) + 1} ({value:.{figure.digits}f})"
        mean = f"{each.mean[name]:.{figure.digits}f}"
        rows.append([str(place), f"**{each.method.name}**", mean, _ahead(ahead, figure.digits), theirs])
    return table(["", "", "ours", "ahead of the next by", "place in the paper"], rows, left=2)


def _ahead(difference: ScoreDifference | None, digits: int) -> str:
    """A difference and its interval, grey where that holds 0."""
    if difference is None:
        return ""
    text = f"{difference.difference:.{digits}f} ({difference.low:.{digits}f} to {difference.high:.{digits}f})"
    return text if difference.clear else f'<span style="color:gray">{text} ≈</span>'


def _pairs(found: Sequence[Measured], figure: Figured) -> str:
    """How many pairs of methods stand as in the paper."""
    same, other, unclear = 0, 0, 0
    for one, two in combinations([each for each in found if figure.paper(each) is not None], 2):
        first, second = figure.paper(one), figure.paper(two)
        difference = one.minus(two, figure.name)
        assert first is not None and second is not None
        if difference is None or first == second:
            continue
        if not difference.clear:
            unclear += 1
        elif (difference.difference > 0) == (first > second):
            same += 1
        else:
            other += 1
    return (
        f"Of {same + other + unclear} pairs of methods that the paper puts in an order, {same} stand in it here, "
        f"{other} stand the other way round, and {unclear} cannot be told apart."
    )
