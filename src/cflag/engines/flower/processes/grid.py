"""The server process's way to its clients: a run at the SuperLink, which this process starts and carries itself.

Flower would have an executor of its own install and run whatever app was submitted. Here nobody executes anything: the
app that a run must name is ours, and its task is taken by the process that already is the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from cflag.engines.flower.private import HOST, C, over_socket
from cflag.engines.flower.processes.fleet import APP


@contextmanager
def open_grid(socket: str) -> Iterator[HttpGrid]:
    """Start a run at the SuperLink behind this socket, and yield the grid of the server that carries it."""
    grid = HttpGrid(HOST, insecure=True, token=_take_task(socket, _start_run(socket)))
    runtime = over_socket(grid._runtime_client, socket)
    HeartbeatSender(make_task_heartbeat_fn_http(runtime)).start()  # until this process ends
    task = runtime.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid.set_run(run_from_proto(task.run))
    how = SubStatus.FAILED
    try:
        yield grid
        how = SubStatus.COMPLETED
    finally:
        grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError, RunNotRunningException):
            runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=how))
        grid.close()


def _start_run(socket: str) -> int:
    """Start a run of our app, and end earlier ones; a SuperLink that is away is waited for."""
    app = build_fab_from_disk(APP)
    fab = fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {}))
    with _connect(ControlHttpClient, socket) as control:
        for earlier, its in control.ListRuns(ListRunsRequest()).run_dict.items():
            if its.status.status != Status.FINISHED:  # its server is dead; clients need not wait for it
                with suppress(httpx.HTTPStatusError):
                    control.StopRun(StopRunRequest(run_id=earlier))
        return int(control.StartRun(StartRunRequest(fab=fab)).run_id)


def _take_task(socket: str, run: int) -> str:
    """Take the run's task and return its token."""
    with _connect(RuntimeHttpClient, socket) as runtime:
        while True:
            taken = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if not taken.token:  # it was started again since, without a database: so is this process
                raise LookupError("the SuperLink does not know the run it has just started")
            if taken.task.run_id == run:
                return str(taken.token)


def _connect(kind: type[C], socket: str) -> C:
    version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
    return over_socket(
        kind.from_server_address(HOST, True, None, [version], retry_invoker=make_simple_http_retry_invoker()), socket
    )
