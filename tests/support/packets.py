# SPDX-License-Identifier: BSD-4-Clause
"""Runs in an agent on `python3 -`: packets as no client makes them, through a raw socket. Standard library only."""

import json
import socket
import struct
import sys
import time

OWN = "198.18.0.10"
FIN, SYN, RST, PSH, ACK, ECE, CWR = 1, 2, 4, 8, 16, 64, 128


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp(to, port, flags, source=OWN, sport=40000):
    """A TCP header with a right checksum."""
    head = struct.pack("!HHIIBBHHH", sport, port, 1000, 0, 5 << 4, flags, 64240, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(to) + struct.pack("!BBH", 0, 6, len(head))
    return head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]


def udp(to, port, data, source=OWN, sport=40000):
    """A UDP datagram without checksum, which IPv4 allows."""
    return struct.pack("!HHHH", sport, port, 8 + len(data), 0) + data


def ip(to, protocol, payload, source=OWN, frag=0, options=b""):
    """A whole IPv4 packet; the kernel fills in length, checksum and (where 0) the identifier."""
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 4 << 4 | words, 0, words * 4 + len(payload), 77, frag, 64, protocol, 0)
    return head + socket.inet_aton(source) + socket.inet_aton(to) + options + payload


def send(packet):
    """``sent``, or the error's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        try:
            raw.sendto(packet, (socket.inet_ntoa(packet[16:20]), 0))
        except OSError as error:
            import errno

            return errno.errorcode[error.errno]
    return "sent"


def scan(to, ports, flags=SYN, patience=2.0):
    """Raw SYNs to each port; port -> flags of the answer, for those that answered."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as listener:
        listener.settimeout(0.1)
        sports = {41000 + index: port for index, port in enumerate(ports)}
        for sport, port in sports.items():
            send(ip(to, 6, tcp(to, port, flags, sport=sport)))
        end = time.monotonic() + patience
        while time.monotonic() < end and len(found) < len(ports):
            try:
                packet = listener.recv(2048)
            except TimeoutError:
                continue
            body = packet[(packet[0] & 15) * 4 :]
            if socket.inet_ntoa(packet[12:16]) == to and int.from_bytes(body[2:4], "big") in sports:
                found[int.from_bytes(body[:2], "big")] = body[13]
    return found


def odd(to, port):
    """One packet of every kind that no rule lets by; name -> what sending it gave."""
    syn = tcp(to, port, SYN)
    made = {
        "first-fragment": ip(to, 6, syn, frag=0x2000),
        "later-fragment": ip(to, 6, syn, frag=100),
        "spoofed": ip(to, 6, tcp(to, port, SYN, source="10.1.2.3"), source="10.1.2.3"),
        "spoofed-neighbour": ip(to, 6, tcp(to, port, SYN, source="198.18.0.2"), source="198.18.0.2"),
        "options": ip(to, 6, syn, options=b"\x83\x07\x04" + socket.inet_aton(to) + b"\0"),
        "syn-fin": ip(to, 6, tcp(to, port, SYN | FIN, sport=40001)),
        "null": ip(to, 6, tcp(to, port, 0, sport=40002)),
        "xmas": ip(to, 6, tcp(to, port, FIN | PSH | 32, sport=40003)),
        "ack": ip(to, 6, tcp(to, port, ACK, sport=40004)),
        "rst": ip(to, 6, tcp(to, port, RST, sport=40005)),
        "gre": ip(to, 47, b"\0\0\x08\0"),
    }
    return {name: send(packet) for name, packet in made.items()}


def elsewhere(targets):
    """Where a packet to each address would go: the kernel's own answer."""
    return {to: send(ip(to, 17, udp(to, 9, b"x"))) for to in targets}


def dial(to, port, patience=1.0):
    """What a plain client sees."""
    try:
        socket.create_connection((to, port), patience).close()
    except OSError as error:
        import errno

        return errno.errorcode.get(error.errno, "timeout")
    return "connected"


def echo(to, patience=1.0):
    """An unprivileged ping."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as ping:
        ping.settimeout(patience)
        try:
            ping.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1) + b"asf", (to, 0))
            return "answered" if ping.recv(1500)[0] == 0 else "error"
        except OSError as error:
            import errno

            return errno.errorcode.get(error.errno, "timeout")


def ask(to, port, patience=1.0):
    """A DNS question for localhost over UDP."""
    question = b"\xa5\xf0\1\0\0\1\0\0\0\0\0\0\x09localhost\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(patience)
        try:
            client.sendto(question, (to, port))
            return "answered" if client.recv(1500) else "empty"
        except OSError as error:
            import errno

            return errno.errorcode.get(error.errno, "timeout")


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    json.dump(globals()[name](**arguments), sys.stdout)
