"""Formulas as MathML, which browsers draw themselves: no script, no fonts, nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def _inline(writer: HTML5Translator, node: nodes.Element) -> None:
    writer.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def _block(writer: HTML5Translator, node: nodes.Element) -> None:
    writer.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer that `html_math_renderer` names."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
