"""The socket options of both ends of a link.

High-water marks are a net under the protocols' credits, not flow control.
"""

import zmq

MAX_FRAME_BYTES = 64 * 1024 * 1024
HIGH_WATER_MESSAGES = 1000
ROUTER_QUEUE_MESSAGES = 200  # of each connection, unread; then its peer waits. Bounds what a flood of large ones holds
MAX_PENDING_CONNECTIONS = 4096  # the kernel takes net.core.somaxconn of them at most

COMMON_OPTIONS = {
    zmq.LINGER: 0,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.SNDHWM: HIGH_WATER_MESSAGES,
}
DEALER_OPTIONS = {
    zmq.RCVHWM: HIGH_WATER_MESSAGES,
    zmq.HEARTBEAT_IVL: 1000,  # ms; a stopped server is noticed after IVL + TIMEOUT
    zmq.HEARTBEAT_TIMEOUT: 1500,
    # No HEARTBEAT_TTL: it makes the router's libzmq search the timers of all connections after most heartbeats.
    zmq.IMMEDIATE: 1,  # else requests queued for a dead server reach its successor
}
# No heartbeats of its own: libzmq aborts the process if one is due on a connection that broke while its receive queue
# was full, which any peer can bring about. Peers' silence is judged by the protocols, and broken lines by TCP.
ROUTER_OPTIONS = {
    zmq.RCVHWM: ROUTER_QUEUE_MESSAGES,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,  # s
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: 25_000,  # ms, as the keepalives take: for a line that breaks while data is under way
    zmq.ROUTER_MANDATORY: 1,  # else unroutable replies vanish without an error
    zmq.ROUTER_HANDOVER: 1,
    zmq.BACKLOG: MAX_PENDING_CONNECTIONS,
}


def set_options(
    socket: zmq.Socket[bytes], options: dict[zmq.SocketOption, int], address: str, max_frame_bytes: int
) -> None:
    """Set all socket options that must be set before bind or connect."""
    for option, value in options.items():
        socket.setsockopt(option, value)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.IPV6, int("[" in address))
