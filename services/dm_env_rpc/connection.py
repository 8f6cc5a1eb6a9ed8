"""One stream of requests and responses to a dm_env_rpc server."""

import queue
from typing import Any

import grpc
from dm_env_rpc.v1 import dm_env_rpc_pb2_grpc, message_utils

from seedbed.shared.errors import EnvError

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Connection:
    """A connection with the methods that dm_env_rpc's adaptor calls. One thread owns it; `close` ends gRPC's threads.

    Args:
      address: host:port.
      tls: whether to use TLS and verify the server by the system's certificates; else plain text.
      connect_s: how long to wait for the server, seconds.
    Raises: EnvError if nobody answers at the address.
    """

    def __init__(self, address: str, *, tls: bool, connect_s: float) -> None:
        self._address = address
        self._channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(), options=UNLIMITED)
            if tls
            else grpc.insecure_channel(address, options=UNLIMITED)
        )
        try:
            grpc.channel_ready_future(self._channel).result(connect_s)
        except grpc.FutureTimeoutError as error:
            self._channel.close()
            raise EnvError(f"no dm_env_rpc server answers at {address} within {connect_s:g} s") from error
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stub = dm_env_rpc_pb2_grpc.EnvironmentStub(self._channel)
        self._responses = stub.Process(iter(self._requests.get, None))

    def send(self, request: Any) -> Any:
        """Send a request and wait for its response, both as dm_env_rpc's own messages.

        Raises: DmEnvRpcError where the server answered with an error, EnvError where the stream is over.
        """
        packed, field = message_utils.pack_environment_request(request)
        self._requests.put(packed)
        try:
            response = next(self._responses)
        except StopIteration as error:
            raise EnvError(f"the dm_env_rpc server at {self._address} hung up") from error
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            raise EnvError(f"the stream to the dm_env_rpc server at {self._address} broke: {reason}") from error
        return message_utils.unpack_environment_response(response, field)

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)
        self._responses.cancel()
        self._channel.close()
