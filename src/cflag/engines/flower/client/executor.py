"""A ClientApp process that stays: it takes one message after the other from its SuperNode.

Flower's own executor starts a new Python, and with it torch and the data, for every message. With
`flower-supernode --isolation process` the process that runs the app is ours to provide.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from cflag.engines.flower.client import app as client_app
from cflag.engines.flower.client.station import Stations

POLL = 0.1
"""Seconds between two looks for a message at the SuperNode, which is on this machine."""
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def execute(address: str, secret: bytes, running: Callable[[], bool]) -> None:
    """Take messages from the SuperNode at this address for as long as `running` says so."""
    client_app.stations = Stations(keeps=True)
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
    tasks = _connect(address, signed)
    while running():
        try:
            task = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if task.token:
                _run(address, task.token)
            else:
                time.sleep(POLL)
        except httpx.HTTPError:  # the SuperNode is starting, or gone: whoever started it starts it again
            time.sleep(1.0)


def _run(address: str, token: str) -> None:
    """Answer one message. If that fails, Flower tells the server; the next message may go well."""
    runtime = _connect(address, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
    heartbeat.start()
    try:
        message, context, _, _ = pull_task_input(runtime)
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


def _connect(address: str, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
    """Connect to the SuperNode; it listens on this machine only, so without TLS."""
    retry = make_simple_http_retry_invoker()
    retry.max_time = 10.0
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), interceptor],
        retry_invoker=retry,
    )
