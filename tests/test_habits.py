"""The files around the code: checked against their public schemas, and that they say the same."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from referencing import Registry

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEMPLATES = ".github/ISSUE_TEMPLATE"
SCHEMAS = {
    ".github/workflows/ci.yml": "github-workflows",
    ".github/dependabot.yml": "dependabot",
    f"{TEMPLATES}/bug.yml": "github-issue-forms",
    f"{TEMPLATES}/idea.yml": "github-issue-forms",
    f"{TEMPLATES}/config.yml": "github-issue-config",
    "CITATION.cff": "citation-file-format",
    "compose.yaml": "compose-spec",
}


def problems(file: str, content: Any) -> list[str]:
    """Return what a schema of check-jsonschema's has against a file; nothing is looked up elsewhere."""
    vendored = files("check_jsonschema.builtin_schemas") / "vendor" / f"{SCHEMAS[file]}.json"
    schema = json.loads(vendored.read_text())
    kind = jsonschema.validators.validator_for(schema)
    return [error.message for error in kind(schema, registry=Registry()).iter_errors(content)]


def load(file: str) -> Any:
    """Read YAML as its schemas mean it: `on` is a word there, and dates are text."""
    return yaml.load((ROOT / file).read_text(), Loader=yaml.BaseLoader if "workflows" in file else yaml.SafeLoader)


@pytest.mark.parametrize("file", SCHEMAS)
def test_a_file_meets_its_schema(file: str) -> None:
    assert not problems(file, _typed(load(file)))


def _typed(value: Any) -> Any:
    """Give words of a workflow their types back, as the host does."""
    if isinstance(value, dict):
        return {key: _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if isinstance(value, str) and re.fullmatch(r"\d+", value):
        return int(value)
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("file", SCHEMAS)
def test_a_schema_refuses_what_is_wrong(file: str) -> None:
    """Or the test above could not fail."""
    assert problems(file, ["not", "a", "table"])


def test_workflows_call_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z-]+|\.venv/ready):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = load(".github/workflows/ci.yml")
    assert set(workflow["jobs"]) == {"lint", "tests", "coverage", "docs", "wheel"}
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    made = {word for run in runs for line in run.splitlines() if line.strip().startswith("make ")
            for word in re.findall(r"[\w./-]+", re.sub(r"\$\{\{.*?\}\}", "every unit", line))[1:]
            if word not in ("PYTHON", "python")}  # fmt: skip
    assert made == {"lint", "types", "every", "unit", "coverage", "docs"}
    assert made <= targets
    for test in re.findall(r"tests/\w+\.py", " ".join(runs)):
        assert (ROOT / test).is_file()
    versions = {
        f"Programming Language :: Python :: {v}" for v in workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    }
    assert versions == {c for c in PROJECT["project"]["classifiers"] if re.search(r"Python :: 3\.\d", c)}


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_all_that_is_declared_is_pinned_and_every_pin_meets_it() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    declared = [*PROJECT["project"]["dependencies"], *(need for needs in extras.values() for need in needs)]
    for need in map(Requirement, declared):
        if need.name != "cflag":
            assert need.specifier.contains(pins()[canonicalize_name(need.name)]), str(need)
    assert pins()["torch"] == "2.13.0"
    whole = Requirement(next(need for need in extras["dev"] if need.startswith("cflag[")))
    assert whole.extras == set(extras) - {"dev"}


def test_hooks_name_files_that_exist() -> None:
    hooks = load(".pre-commit-config.yaml")["repos"][0]["hooks"]
    entries = " ".join(hook["entry"] for hook in hooks)
    assert {hook["language"] for hook in hooks} == {"system"}
    for test in re.findall(r"tests/\w+\.py", entries):
        assert (ROOT / test).is_file()
