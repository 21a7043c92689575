"""A ClientApp process that stays: it takes one message after the other from its SuperNode.

Flower's own executor starts a new Python, and with it torch and the data, for every message. With
`flower-supernode --isolation process` the process that runs the app is ours to provide.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from cflag.engines.flower.client import app as client_app
from cflag.engines.flower.client.station import Stations
from cflag.engines.flower.private import HOST, over_socket

POLL = 0.1
"""Seconds between two looks for a message at the SuperNode, which is on this machine."""


def execute(socket: str, running: Callable[[], bool]) -> None:
    """Take messages from the SuperNode behind this socket for as long as `running` says so."""
    client_app.stations = Stations(keeps=True)
    with _connect(socket) as tasks:
        while running():
            try:
                task = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                if task.token:
                    _run(socket, task.token)
                else:
                    time.sleep(POLL)
            except httpx.HTTPError:  # the SuperNode is starting, or gone: whoever started it starts it again
                time.sleep(1.0)


def _run(socket: str, token: str) -> None:
    """Answer one message. If that fails, Flower tells the server; the next message may go well."""
    runtime = _connect(socket, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(lambda: _known(runtime) or True)
    heartbeat.start()
    try:
        try:
            message, context, _, _ = pull_task_input(runtime)
        except Exception:
            time.sleep(1.0)
            if _known(runtime):
                raise
            return  # its run ended before all of it was there, and the SuperNode waits for no answer
        status, details = SubStatus.COMPLETED, ""
        try:
            reply = client_app.client(message=message, context=context)
        except Exception as error:  # whatever it is: a SuperNode whose message has no reply waits for it forever
            traceback.print_exc()
            status, details = SubStatus.FAILED, f"{type(error).__name__}: {error}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        push_message(runtime, reply, context)
        push_task_output(runtime, context, status, details)
    finally:
        heartbeat.stop()
        runtime.close()


def _known(runtime: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its task is being worked on; return whether it still knows it."""
    with suppress(httpx.HTTPError):
        runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True
    return False


def _connect(socket: str, *tokens: RuntimeTokenHttpInterceptor) -> RuntimeHttpClient:
    """Connect to the SuperNode; through a private socket, so without TLS."""
    retry = make_simple_http_retry_invoker()
    retry.max_time = 10.0
    # A refusal is final. Flower would end this process for it.
    retry.should_giveup = lambda error: isinstance(error, httpx.HTTPStatusError)
    client = RuntimeHttpClient.from_server_address(
        server_address=HOST,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *tokens],
        retry_invoker=retry,
    )
    return over_socket(client, socket)
