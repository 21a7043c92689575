"""The ledger: every number the paper prints beside ours, and which of its claims our runs support.

It is made from the campaigns' summaries alone, so that anyone can check it without the runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cflag.errors import UserError
from cflag.files import write_atomically, write_json
from cflag.paper.campaigns import CAMPAIGNS, PAPERS
from cflag.paper.cells import Campaign
from cflag.paper.claims import CLAIMS, Claim, Verdict, overall
from cflag.paper.figures import draw, drawable
from cflag.paper.present import NONE, markdown_table
from cflag.paper.scales import EVIDENCE, SEEDS
from cflag.paper.sections import first, marked, rows_of, section
from cflag.paper.sharing import completed
from cflag.paper.summary import CellResult, Summary
from cflag.paper.variants import label, main_cflag

Ledger = dict[str, dict[str, Summary]]
"""Summaries by campaign and scale."""

SIGNS: dict[Verdict | None, str] = {"yes": "✔ supported", "open": "~ open", "no": "✘ not supported", None: NONE}
INTRODUCTION = """\
<!-- Written by `cflag ledger` from the summaries in results/; change those, not this. -->
# The paper's tables and figures, and ours

Every number of the paper (Keshri, Shah, Prasad, AISTATS 2025) that can be compared is here beside ours: mean ± standard
deviation over seeds, in percent. **Acc** is the mean accuracy over all tasks after the last, **Forget** the mean of
a_ii − a_Si; below zero, tasks got better after they were learned. *printed* is what the paper prints, the other columns
are our runs at the scale they name; *to C-FLAG* (or *to C-FLAG-SGD*) is a method's Acc minus that of C-FLAG
(C-FLAG-SGD). Costs are per run: gradient evaluations in thousands of samples, megabytes up and down.

## Which C-FLAG

- *C-FLAG, as in the paper's experiments* is Algorithm 1 with mini-batch gradients and Adam.
- *C-FLAG, delayed gradients* is Algorithm 1 with the gradients that it prescribes.
- *C-FLAG-SGD* is our variant, not the paper's algorithm: mini-batch gradients, no drift correction, the interference
  rule only, and memory gradients weighted by memory samples. What it does is no evidence about Algorithm 1.

Printed numbers and the paper's claims are about the paper's own C-FLAG. Where only C-FLAG-SGD was run, it takes
C-FLAG's place and the tables say so.

"""
COMPARABLE = """
**≠ marks numbers from another scale than the paper's.** At `small` the network (a small CNN at 16×16 in the place of
ResNet), with the rate that suits it, is the only difference from the authors' scripts, so that order, signs and trends
should carry over, levels not. At `cpu` the network is the paper's, but images are fewer, rounds are shorter and the
optimizer is SGD.
"""

JUDGED = """\
A difference counts when its two-sided 95 % confidence interval over the seeds (Student's t) excludes 0; otherwise the
claim stays open. Our differences are taken seed by seed: one seed means the same tasks, clients and initial model for
every method. The evidence below gives them as mean ± half of that interval. A claim about several data sets is
supported when all of them support it, and not supported when one contradicts it; in brackets is how many support it.
*printed* is the same judgement of the numbers that the paper prints, over its three seeds, with Welch's degrees of
freedom. Three seeds are few: paired, a difference must exceed 4.3 standard errors.
"""


def keep(folders: Iterable[Path], into: Path) -> None:
    """Add the summaries of campaigns to those in the ledger's folder, and draw the figures that change."""
    before = {path: path.read_bytes() for path in _kept(into)}
    for folder in folders:
        found = [folder / f"{name}.json" for name in CAMPAIGNS if (folder / f"{name}.json").is_file()]
        if not found:
            raise UserError(f"{folder} holds no summary of a table or figure; make one with: cflag reproduce")
        for path in found:
            summary = _of_evidence(path).own()
            home = into / summary.scale / path.name
            home.parent.mkdir(parents=True, exist_ok=True)
            write_json(home, (summary.added_to(_load(home).own()) if home.is_file() else summary).to_dict())
    _share(into)
    for home in _kept(into):
        if before.get(home) != home.read_bytes():
            _draw(home)


def draw_anew(into: Path) -> None:
    """Draw the figures of all summaries in the ledger's folder."""
    _share(into)
    for path in _kept(into):
        _draw(path)


def _share(into: Path) -> None:
    """Give each summary the rows that it lacks and another one of its scale has."""
    for scale in EVIDENCE:
        homes = [path for path in _kept(into) if path.parent.name == scale]
        for home, summary in zip(homes, completed([_load(home).own() for home in homes]), strict=True):
            write_json(home, summary.to_dict())


def _draw(path: Path) -> None:
    summary = _of_evidence(path)
    campaign = CAMPAIGNS[summary.campaign]
    if drawable(campaign, summary):
        draw(campaign, summary).savefig(path.with_suffix(".png"), dpi=100)


def _kept(folder: Path) -> list[Path]:
    """Return the summaries that the ledger is made of."""
    return [p for scale in EVIDENCE for name in CAMPAIGNS if (p := folder / scale / f"{name}.json").is_file()]


def write_ledger(docs: Path) -> Path:
    """Write results.md from the summaries in results/."""
    path = docs / "results.md"
    write_atomically(path, make_ledger(docs / "results").encode())
    return path


def make_ledger(folder: Path) -> str:
    """Return the ledger as Markdown."""
    paths = _kept(folder)
    if not paths:
        raise UserError(f"{folder} holds no summaries; take in a campaign's: cflag ledger runs/reproduce-small")
    ledger: Ledger = {}
    for path in paths:
        summary = _of_evidence(path)
        ledger.setdefault(summary.campaign, {})[summary.scale] = summary
    parts = [INTRODUCTION, _scales(ledger), COMPARABLE, _claims(ledger)]
    parts += [section(CAMPAIGNS[name], ledger[name], folder) for name in CAMPAIGNS if name in ledger]
    missing = [name for name in CAMPAIGNS if name not in ledger]
    if missing:
        parts.append(f"\n## Not run\n\n{', '.join(missing)}\n")
    return "".join(parts)


def _load(path: Path) -> Summary:
    try:
        return Summary.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a summary that cflag reproduce wrote ({error})") from None


def _of_evidence(path: Path) -> Summary:
    """Read a summary, and refuse one of runs that say nothing about the paper."""
    summary = _load(path)
    if summary.scale not in EVIDENCE:
        raise UserError(f"{path}: {summary.scale} runs are for trying things out; judge at --scale small")
    return summary


def _scales(ledger: Ledger) -> str:
    """Say which campaigns were run at which scale, and what the scales are."""
    rows = []
    for name, campaign in CAMPAIGNS.items():
        counts = [_count(campaign, ledger.get(name, {}).get(scale)) for scale in EVIDENCE]
        link = f"[`{name}`](#{name})" if name in ledger else f"`{name}`"
        rows.append([link, campaign.title, *counts])
    about = "".join(f"- `{name}`: {scale.about}; {_rows_at(name)}\n" for name, scale in EVIDENCE.items())
    table = markdown_table(["", "", *EVIDENCE], rows, 2)
    counts_are = "Cells with results, of all that a campaign has; runs in common are counted in each campaign."
    return f"## What was run\n\n{table}\n{counts_are} The scales:\n\n{about}"


def _rows_at(scale: str) -> str:
    return " and ".join(f"*{label(name)}*" for name in EVIDENCE[scale].cflag)


def _count(campaign: Campaign, summary: Summary | None) -> str:
    if summary is None:
        return NONE
    done = sum(1 for e in summary.entries if e.accuracy)
    whole = sum(len(cell.variants(summary.scale)) for cell in campaign.cells)
    return f"{done} of {whole} ({sum(len(e.seeds) for e in summary.entries)} runs)"


# --- claims ----------------------------------------------------------------------------------------------


def _claims(ledger: Ledger) -> str:
    """Judge every claim at every scale that was run."""
    ledger = {name: by_scale for name, by_scale in ledger.items() if name in PAPERS}
    scales = [s for s in EVIDENCE if any(s in by_scale for by_scale in ledger.values())]
    rows = []
    for claim in CLAIMS:
        summaries = ledger.get(claim.campaign, {})
        verdicts = [_verdict(claim, _as_printed(summaries)), *(_verdict(claim, summaries.get(s)) for s in scales)]
        rows.append([claim.says, f"`{claim.campaign}`", *verdicts])
    heads = ["the paper says", "where", "printed", *(f"{marked(s)}, {_judged_on(ledger, s)}" for s in scales)]
    details = "".join(_details(claim, ledger) for claim in CLAIMS)
    judged = "; ".join(f"at `{s}` on {_judged_on(ledger, s)}" for s in scales)
    return (
        f"\n## What the paper says, and what our runs say\n\n{JUDGED}"
        f"\nClaims about C-FLAG are judged {judged}.\n\n"
        + markdown_table(heads, rows, len(heads))
        + f"\n<details><summary>Evidence for each</summary>\n\n{details}\n</details>\n"
    )


def _judged_on(ledger: Ledger, scale: str) -> str:
    """Name the variants of C-FLAG that claims are judged on at a scale; campaigns may differ."""
    found = [
        main_cflag([e.method for e in by_scale[scale].entries if e.accuracy])
        for by_scale in ledger.values()
        if scale in by_scale
    ]
    return " or ".join(dict.fromkeys(label(name) for name in found if name)) or "no C-FLAG"


def _verdict(claim: Claim, summary: Summary | None) -> str:
    if summary is None:
        return SIGNS[None]
    judgements = claim.judge(summary)
    if len(judgements) < 2:
        return SIGNS[overall(judgements)]
    supported = sum(j.verdict == "yes" for j in judgements)
    return f"{SIGNS[overall(judgements)]} ({supported} of {len(judgements)})"


def _as_printed(by_scale: dict[str, Summary]) -> Summary | None:
    """Return the paper's own numbers as if they were ours, where it prints them."""
    if not by_scale:
        return None
    entries = [
        CellResult(e.group, e.method, e.at, list(SEEDS), e.paper_accuracy, e.paper_forgetting)
        for e in map(first, rows_of(by_scale))
    ]
    return replace(next(iter(by_scale.values())), entries=entries)


def _details(claim: Claim, ledger: Ledger) -> str:
    lines = [
        f"  - {scale}, {j.part}: {SIGNS[j.verdict]}; {j.evidence}\n"
        for scale, summary in ledger.get(claim.campaign, {}).items()
        for j in claim.judge(summary)
    ]
    return f"- {claim.says}\n{''.join(lines)}" if lines else ""
