"""A claim of the paper, and what our results make of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from cbsa.reproduction.evidence import Evidence, MissingError

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold"
NOT_YET, NOT_HERE = "not tested yet", "not testable here"
VERDICTS = (HOLDS, PARTLY, FAILS, NOT_YET, NOT_HERE)


@dataclass(frozen=True)
class Finding:
    """What was found out about a claim.

    Attributes:
        verdict: one of :data:`VERDICTS`.
        measured: our numbers, with the scale they were taken at.
        reason: why the verdict is what it is, and what speaks against it.
        is_small: whether it is one about models smaller than any of the paper's.
    """

    verdict: str
    measured: str = ""
    reason: str = ""
    is_small: bool = False


Look = Callable[[Evidence], Finding]  # reads committed files and judges by a rule


@dataclass(frozen=True)
class Claim:
    """Something that the paper says.

    Attributes:
        name: short and unique: the row's anchor.
        where: table, figure, equation or section.
        says: what; its numbers are the paper's.
        commands: what makes the files that decide it.
        look: reads these files and judges by a rule that it states; files that it asks for and are not there
            make the claim one that is not tested yet.
    """

    name: str
    where: str
    says: str
    commands: tuple[str, ...]
    look: Look


@dataclass(frozen=True)
class Judged:
    """A claim with its finding and the files that were read for it, relative to the repository."""

    claim: Claim
    finding: Finding
    sources: tuple[str, ...]


def judge(claim: Claim, root: Path) -> Judged:
    """Look at the committed files for a claim."""
    found = Evidence(root)
    try:
        finding = claim.look(found)
    except MissingError as missing:
        finding = Finding(NOT_YET, reason=f"There is no `{missing.path}` yet; the command makes it.")
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        read = ", ".join(found.used) or "no file"
        raise ValueError(
            f"claim {claim.name}: {error!r} in what was read ({read}): a result file is damaged, or its "
            "format has changed and the claim has not"
        ) from error
    return Judged(claim, finding, tuple(dict.fromkeys(found.used)))


def not_here(reason: str) -> Look:
    """A look at a claim that nothing here can decide."""
    return lambda found: Finding(NOT_HERE, reason=reason)


def proven(path: str, names: Sequence[str], how: str, reason: str = "") -> Look:
    """A look at a claim that tests of the suite decide: it holds while they are there and pass."""

    def look(found: Evidence) -> Finding:
        for name in names:
            found.test(path, name)
        tests = ", ".join(f"`{name}`" for name in names)
        return Finding(HOLDS, f"{how} ({tests})", reason)

    return look


def order_verdict(theirs: Sequence[str], ours: Mapping[str, float]) -> tuple[str, str]:
    """Judge an order of rows by its pairs: all as in the paper hold, more than half hold partly.

    Args:
        theirs: names from the paper's best to its worst; those without a value of ours do not count.
        ours: our values, the higher the better.

    Returns:
        The verdict, and the share of pairs in words.
    """
    pairs = list(combinations([name for name in theirs if name in ours], 2))
    if not pairs:
        raise ValueError(
            f"an order of {', '.join(theirs)} needs two of them, got {', '.join(ours) or 'none'}"
        )
    kept = sum(ours[better] > ours[worse] for better, worse in pairs)
    verdict = HOLDS if kept == len(pairs) else PARTLY if 2 * kept > len(pairs) else FAILS
    return verdict, f"{kept} of {len(pairs)} pairs are in the paper's order"
