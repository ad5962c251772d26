# SPDX-License-Identifier: BSD-4-Clause
"""ask.py HOST PORT LINE…: send an HTTP/1.1 request of these lines, print the answer's head, or the error's name."""

import socket
import sys


def main(host: str, port: str, lines: list[str]) -> None:
    """Runs inside a container's network namespace, with the host's Python."""
    try:
        with socket.create_connection((host, int(port)), 10) as sock:
            sock.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while b"\r\n\r\n" not in answer and (chunk := sock.recv(65536)):
                answer += chunk
    except OSError as error:
        print(type(error).__name__, error.errno)
        return
    print(answer.split(b"\r\n\r\n")[0].decode("latin-1"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
