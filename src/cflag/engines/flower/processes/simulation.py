"""Flower's simulation in this process: no SuperLink, and so nothing of ours that listens."""

from __future__ import annotations

from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.serverapp import ServerApp
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.telemetry import EventType

from cflag.engines.flower.processes.fleet import APP
from cflag.process import cores
from cflag.results.folder import RunFolder

CLIENT = "cflag.engines.flower.client.app:client"


def simulate(server: ServerApp, folder: RunFolder) -> None:
    """Run the server, and the folder's clients on Ray."""
    config = folder.config()
    where: UserConfig = {"out": str(folder.path.absolute())}
    _run_simulation(
        config.clients,
        EventType.FLWR_SIMULATION_RUN_LEAVE,
        server_app=server,
        client_app_attr=CLIENT,
        server_app_context=Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=where),
        backend_config={
            "client_resources": {"num_cpus": 1.0},
            "init_args": {"num_cpus": config.workers or cores()},
        },
        app_dir=str(APP),
    )
