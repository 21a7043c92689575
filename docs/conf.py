"""How the documentation site is built: `make docs`, then open docs/_build/html/index.html."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "cflag"
author = "The cflag developers"
project_copyright = "The cflag developers, Apache-2.0"
version = release = installed("cflag")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "cflag_parts", "mathml"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "cflag"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False
html_math_renderer = "mathml"  # browsers draw it themselves, without a script from elsewhere

PAGES_ABOVE = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages of the site that stand in the repository's root, where people look for them first."""
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[\w-]+)?\)")


def _to_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Take over pages of the root; links lead to what the site has: folders and readmes of the code have no page."""
    above = PAGES_ABOVE.get(page)
    folder = HERE.parent if above else (HERE / page).parent
    if above:
        source[0] = (HERE.parent / above).read_text(encoding="utf-8")
    here = (HERE / page).parent

    def led(link: re.Match[str]) -> str:
        target, anchor = (folder / link[1]).resolve(), link[2] or ""
        own = {str(HERE.parent / name): f"{page}.md" for page, name in PAGES_ABOVE.items()}.get(str(target))
        if target.is_dir() or (target.suffix == ".md" and not own and HERE not in target.parents):
            return "]"
        return f"]({os.path.relpath(HERE / own if own else target, here)}{anchor})"

    source[0] = LINK.sub(led, source[0])


def setup(app: Sphinx) -> None:
    """Register what is ours."""
    app.connect("source-read", _to_the_site)
