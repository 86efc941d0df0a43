"""The page of claims, ``docs/REPRODUCTION.md``: written from committed files, so that it cannot drift."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cbsa.reproduction.claim import (
    FAILS,
    HOLDS,
    NOT_HERE,
    NOT_YET,
    PARTLY,
    VERDICTS,
    Finding,
    Judged,
    judge,
)
from cbsa.reproduction.claims import SUBJECTS
from cbsa.reproduction.evidence import SCALES, counts, failures

PICTURES = "reproduction_pictures.md"  # the page beside it
_MEANING = {
    HOLDS: "our measurement agrees with it, by the rule given",
    PARTLY: "a part of it agrees, or a weaker form of it",
    FAILS: "our measurement disagrees, at the scale given",
    NOT_YET: "the command that decides it has not been run where it counts",
    NOT_HERE: "needs data, weights or machines that we do not have, or is nothing to measure",
}
_HEAD = """# The paper, claim by claim

<!-- Written by `cbsa reproduce report` from the files it names. Do not edit: change a claim in
src/cbsa/reproduction/claims, or a result, and write it anew. `cbsa reproduce report --check` compares. -->

Every claim, table and figure of *Towards Interpretable and Efficient Attention* (NeurIPS 2025) in a row:
what it says, what we measured, at which scale, by which command, and whether it holds. Numbers under «the
paper says» are the paper's, all others ours, read from the committed files that each row names; verdicts
follow from them by the rule in the row. This page is written by `cbsa reproduce report`, and a test fails if
it differs from the files.

**The scale is not the paper's.** The paper trains on ImageNet-1k at 224 px for 150 epochs. Here:
Tiny-ImageNet at 64 px for 20 epochs (width T), digits on a CPU, and counts that need no training. Where
these have not been run yet, models in a pocket stand in: four layers of width 64 on CIFAR-10, on a CPU;
verdicts that rest on them are marked «small». What «does not hold» here may hold there, and the other way
round.
"""


def report(root: Path, page: Path) -> str:
    """The whole page.

    Args:
        root: the repository, with ``benchmarks/results`` and ``tests``.
        page: where the page will lie; its links are relative to that.
    """
    judged = {title: [judge(claim, root) for claim in claims] for title, claims in SUBJECTS.items()}
    sections = [_HEAD, _summary(judged), _overview(judged)]
    sections += [_section(title, rows, root, page) for title, rows in judged.items()]
    return "\n".join([*sections, _failed(root)])


def _summary(judged: Mapping[str, Sequence[Judged]]) -> str:
    """How many claims have which verdict, and what that means."""
    findings = [row.finding for rows in judged.values() for row in rows]
    lines = ["| verdict | claims | of them small | meaning |", "|---|---|---|---|"]
    for verdict in VERDICTS:
        those = [finding for finding in findings if finding.verdict == verdict]
        small = sum(finding.is_small for finding in those)
        lines.append(f"| {verdict} | {len(those)} | {small or ''} | {_MEANING[verdict]} |")
    return "\n".join(lines) + f"\n\nThe pictures are on [a page of their own]({PICTURES}).\n"


def _overview(judged: Mapping[str, Sequence[Judged]]) -> str:
    """One line for each claim, with a link to its row."""
    lines = ["## All of them", "", "| | where | verdict |", "|---|---|---|"]
    for row in (row for rows in judged.values() for row in rows):
        claim, verdict = row.claim, _verdict(row.finding)
        lines.append(f"| [{claim.name}](#{claim.name}) | {_cell(claim.where)} | {verdict} |")
    return "\n".join(lines) + "\n"


def _section(title: str, rows: Sequence[Judged], root: Path, page: Path) -> str:
    """The rows of a subject."""
    lines = [
        f"## {title}",
        "",
        "| the paper says | we measured | verdict | command, files |",
        "|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(map(_cell, _cells(row, root, page))) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: Judged, root: Path, page: Path) -> tuple[str, str, str, str]:
    claim, finding = row.claim, row.finding
    says = f'<a id="{claim.name}"></a>**{claim.where}.** {claim.says}'
    links = ", ".join(f"[{_short(path)}]({link(root / path, page)})" for path in row.sources)
    how = "<br>".join([*(f"`{command}`" for command in claim.commands), *([links] if links else [])])
    verdict = f"**{_verdict(finding)}**" + (f"<br>{finding.reason}" if finding.reason else "")
    return _spaced(says), _spaced(finding.measured) or "—", _spaced(verdict), how or "—"


def _verdict(finding: Finding) -> str:
    return f"{finding.verdict} (small)" if finding.is_small else finding.verdict


def _spaced(text: str) -> str:
    """Percent signs as the documentation writes them."""
    return re.sub(r"(\d)%", r"\1 %", text)


def _short(path: str) -> str:
    return path.removeprefix("benchmarks/results/")


def link(path: Path, page: Path) -> str:
    """A path as seen from the folder of a page."""
    return Path(os.path.relpath(path, page.parent)).as_posix()


def _cell(text: str) -> str:
    """Text that stays within a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _failed(root: Path) -> str:
    """Runs of studies that failed, and how many there are in all."""
    done, lost = counts(root), failures(root)
    places = " and ".join(f"`{scale.folder}`" for scale in SCALES)
    lines = ["## Runs that failed", ""]
    if not done:
        lines.append(f"No study has left a result under {places} yet, so none of its runs has failed.")
    else:
        shown = ", ".join(f"{study} {number}" for study, number in done.items())
        lines.append(
            f"Jobs of studies with a result under {places}: {shown}. {len(lost) or 'None'} of them failed."
        )
    if lost:
        lines += ["", "| run | why | command |", "|---|---|---|"]
        lines += [f"| {f.job} | {_cell(f.reason)} | `{_cell(f.command)}` |" for f in lost]
    return "\n".join(lines) + "\n"
