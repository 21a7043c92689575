"""How a server process ended, for whoever started it, and how to resume its run."""

from __future__ import annotations

from cflag.errors import CflagError, DivergedError, InterruptedRunError, UserError
from cflag.files import read_json, write_json
from cflag.results.folder import RunFolder

OUTCOME = "outcome.json"


def write_outcome(folder: RunFolder, error: CflagError) -> None:
    """Leave the error that ended the server process in the run folder."""
    write_json(folder.path / OUTCOME, {"exit_code": error.exit_code, "error": str(error)})


def forget_outcome(folder: RunFolder) -> None:
    """Remove what an earlier server process left."""
    (folder.path / OUTCOME).unlink(missing_ok=True)


def raise_outcome(folder: RunFolder) -> None:
    """Raise what the server process raised, if it did."""
    path = folder.path / OUTCOME
    if path.is_file():
        outcome = read_json(path)
        kinds = (UserError, DivergedError, InterruptedRunError)
        kind = next((k for k in kinds if k.exit_code == outcome.get("exit_code")), CflagError)
        raise kind(outcome.get("error", f"{path} is damaged"))


def command_of(folder: RunFolder) -> str:
    """Return which command resumes such a run: only `cflag deploy` has the keys in the run folder."""
    if folder.config().engine != "flower":
        return "run"
    return "deploy" if (folder.path / "deployment" / "keys").is_dir() else "server --keys KEYS"


def how_to_resume(folder: RunFolder) -> str:
    """Return how such a run is resumed, for the end of a message."""
    return f"continue with: cflag {command_of(folder)} --resume {folder.path}"
