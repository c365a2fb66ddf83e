"""Port of the viewer: the first free one that browsers open."""

from __future__ import annotations

import errno
import socket

MAX_PORT_ATTEMPTS = 100  # ports tried after the first
# ports of other protocols, which browsers refuse to open: "bad ports" of https://fetch.spec.whatwg.org/#port-blocking
# fmt: off
BLOCKED_PORTS = frozenset((
    1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110,
    111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530, 531, 532,
    540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061,
    6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
))
# fmt: on


def bind(port: int) -> socket.socket:
    """Return a socket bound to 127.0.0.1 on the first free port from `port` on that browsers open."""
    if port > 65_535:
        raise ValueError(f"port is {port}; expected at most 65535")
    if port in BLOCKED_PORTS:
        other = next(candidate for candidate in range(port, 65_535) if candidate not in BLOCKED_PORTS)
        raise ValueError(f"port is {port}, which browsers refuse to open; expected another port, such as {other}")
    last = min(port + MAX_PORT_ATTEMPTS, 65_535)
    for candidate in (candidate for candidate in range(port, last + 1) if candidate not in BLOCKED_PORTS):
        try:
            bound = socket.create_server(("127.0.0.1", candidate))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(f"port is {candidate}: {error.strerror}") from None
        else:
            bound.setblocking(False)
            return bound
    raise OSError(f"port is {port}; this port and the next {MAX_PORT_ATTEMPTS} are in use")
