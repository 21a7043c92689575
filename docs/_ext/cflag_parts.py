"""What pages say about parts comes from the code and the ledger: settings with their defaults, and measured numbers."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from cflag import registry
from cflag.paper.campaigns import CAMPAIGNS
from cflag.paper.variants import VARIANTS

RESULTS = Path(__file__).parent.parent / "results"


def explained(cls: type[Any]) -> dict[str, str]:
    """Return what the source says below each field of a dataclass and of those it is made from."""
    found: dict[str, str] = {}
    for part in reversed(cls.__mro__[:-1]):
        body = ast.parse(dedent(inspect.getsource(part))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, [*body.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            found[field.target.id] = " ".join(str(text).split()) or found.get(field.target.id, "")
    return found


def settings_table(method: str) -> Iterator[str]:
    """Yield a table of a method's own settings, as Markdown."""
    cls = registry.get("method", method).Settings
    if not fields(cls):
        yield "It has no settings of its own."
        return
    text = explained(cls)
    yield from (f"In a file, the table `[{method}]`; on the command line, `--set {method}.NAME=VALUE`.", "")
    yield from ("| setting | default | meaning |", "|---|---|---|")
    for field in fields(cls):
        yield f"| `{field.name}` | `{json.dumps(field.default)}` | {text[field.name].replace('|', '/')} |"


def numbers_table(method: str) -> Iterator[str]:
    """Yield a table of what the ledger has of a method: tables and comparisons at equal cost, with their seeds."""
    rows = list(_rows(method))
    if not rows:
        yield "The ledger has no runs of it yet."
        return
    yield from ("| benchmark | row | Acc | Forget | seeds | table |", "|---|---|---:|---:|---:|---|")
    yield from rows


def _rows(method: str) -> Iterator[str]:
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*/*.json"))]
    order = list(CAMPAIGNS)  # as the ledger has them, the paper's own first
    known = sorted((s for s in found if s["campaign"] in CAMPAIGNS), key=lambda s: order.index(s["campaign"]))
    for summary in known:
        campaign = CAMPAIGNS[summary["campaign"]]
        if campaign.kind not in ("table", "rows", "cost"):
            continue
        for entry in summary["entries"]:
            variant = VARIANTS.get(entry["method"])
            if variant is None or variant.method != method or not entry["accuracy"]:
                continue
            accuracy, forgetting = (f"{entry[name][0]:.1f}" for name in ("accuracy", "forgetting"))
            link = f"[{campaign.title}](../results.md#{summary['campaign']})"
            budget = f", {campaign.axis} of {entry['at']:g} rounds of replay" if campaign.kind == "cost" else ""
            group = f"{entry['group']}, {summary['scale']}{budget}"
            yield f"| {group} | {variant.label} | {accuracy} | {forgetting} | {len(entry['seeds'])} | {link} |"


class Generated(Directive):
    """A part of a page that is made when the site is built."""

    required_arguments = 1
    make = staticmethod(settings_table)

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown that `make` yields where the directive stands."""
        holder = nodes.container()
        holder.document = self.state.document
        self.state.nested_parse(StringList([*self.make(self.arguments[0])], "generated"), self.content_offset, holder)
        return holder.children


class Numbers(Generated):
    """Measured numbers."""

    make = staticmethod(numbers_table)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both directives."""
    app.add_directive("settings", Generated)
    app.add_directive("numbers", Numbers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
