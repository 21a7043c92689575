"""MLflow: a run in a store."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cflag.data.schedules.base import total_rounds
from cflag.loggers.base import TIME, Logger, Status, settings, summary
from cflag.registry import register
from cflag.results.folder import ARTIFACTS

STORE = "mlflow.db"
"""MLflow's database beside the run folder, where the environment names no other store."""


@register("logger", "mlflow", "a run in MLflow's store: MLFLOW_TRACKING_URI's, or a database beside the run folder")
class MlflowLogger(Logger):
    """A run in MLflow's store, which MLFLOW_TRACKING_URI names; else a database beside the run folder."""

    title = "MLflow"
    package = "cflag[mlflow]"

    @classmethod
    def modules(cls) -> Iterable[str]:
        """Return the small mlflow package, and what a database of our own needs."""
        return ["mlflow"] if os.environ.get("MLFLOW_TRACKING_URI") else ["mlflow", "sqlalchemy", "alembic"]

    def open(self, done: int) -> set[int]:
        """Go on with the run whose id is in the run folder, or start one."""
        self.client = self._client()
        run = self._kept() or self._new()
        self.run = run.info.run_id
        self.client.update_run(self.run, status="RUNNING")
        self._log_settings(run.data.params)
        return {metric.step for metric in self.client.get_metric_history(self.run, TIME)}

    def _client(self) -> Any:
        # Unless the environment says otherwise: tell nobody that it is used, and do not hold the run up for minutes
        # where a server is gone.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table it makes
        self.home = self.folder.path.absolute().parent
        return MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or own_store(self.home))

    def _kept(self) -> Any:
        """Return the run that was started; None where the store does not have it, or it was deleted there."""
        from mlflow.exceptions import MlflowException

        kept = self.state.of(self.name).get("run")
        try:
            run = self.client.get_run(kept) if kept else None
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run and run.info.lifecycle_stage == "active" else None

    def _new(self) -> Any:
        run = self.client.create_run(self._experiment(), run_name=self.folder.path.absolute().name)
        self.state.keep(self.name, run=run.info.run_id)
        return run

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "cflag"
        found = self.client.get_experiment_by_name(name)
        if found is None:
            own = None if os.environ.get("MLFLOW_TRACKING_URI") else (self.home / ARTIFACTS).as_uri()
            try:
                return str(self.client.create_experiment(name, artifact_location=own))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run of a comparison was faster
                    raise
            found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def _log_settings(self, there: Mapping[str, str]) -> None:
        """Log the settings once: MLflow lets nobody change them, and some may be when a run is resumed."""
        from mlflow.entities import Param

        params = [Param(key, str(value)) for key, value in settings(self.config).items() if key not in there]
        for start in range(0, len(params), 100):  # the most that MLflow takes at once
            self.client.log_batch(self.run, params=params[start : start + 100])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log a round in one request, so that it is there as a whole or not at all."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def sum_up(self, result: Mapping[str, Any]) -> None:
        """Add what the run came to, and its files."""
        found = summary(result)
        if not set(found) <= set(self.client.get_run(self.run).data.metrics):
            self.log(total_rounds(self.config), found)
        for name in ("config.toml", "metrics.jsonl", "result.json"):
            self.client.log_artifact(self.run, str(self.folder.path / name))
        self.client.log_artifacts(self.run, str(self.folder.path / "figures"), "figures")

    def close(self, status: Status) -> None:
        """Say how the run ended."""
        self.client.set_terminated(self.run, status)

    def abandon(self, status: Status) -> None:
        """Set the status of a run that was started and is not finished."""
        kept = self.state.of(self.name)
        if "run" in kept and not kept.get("finished"):
            self._client().set_terminated(kept["run"], status)


def own_store(home: Path) -> str:
    """Return the address of the store beside the runs; create it where there is none.

    Creating it takes many steps, and a half-made one cannot be opened. So that neither a kill nor two runs at once
    leave one behind, one process at a time creates it under another name and renames it.
    """
    from mlflow import MlflowClient

    path, fresh = home / STORE, home / f"{STORE}.new"
    with open(home / f".{STORE}.lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not path.exists():
            for left in (fresh, home / f"{fresh.name}-journal"):
                left.unlink(missing_ok=True)
            MlflowClient(tracking_uri=f"sqlite:///{fresh}").search_experiments(max_results=1)
            os.replace(fresh, path)
    return f"sqlite:///{path}"
