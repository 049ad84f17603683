"""The hosts themselves: a cable that is pulled loses packets, and loses no connection."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.namespaces import Host, Hosts, _names, _remove, why_not

if why_not():
    pytest.skip(str(why_not()), allow_module_level=True)

# Sends back each line, with what it has counted; tells its port first.
_SERVER = """
import socket, sys
listening = socket.create_server((sys.argv[1], 0))
print(listening.getsockname()[1], flush=True)
stream = listening.accept()[0].makefile("rw")
for line in stream:
    print("heard", line.strip(), flush=True)
    stream.write(line); stream.flush()
print("end", flush=True)
"""

# Sends what it is told, and tells what comes back.
_CLIENT = """
import socket, sys, threading
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
stream = connection.makefile("rw")
def read():
    for line in stream:
        print("back", line.strip(), flush=True)
threading.Thread(target=read, daemon=True).start()
print("connected", flush=True)
for line in sys.stdin:
    connection.sendall(line.encode())
"""


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with Hosts(2) as hosts:
        yield hosts


class Pair:
    """A server on one host, a client on another, one connection between them."""

    def __init__(self, server: Host, client: Host) -> None:
        python = (sys.executable, "-c")
        self.server = server.start(*python, _SERVER, server.address, stdout=subprocess.PIPE)
        port = self.heard()
        self.client = client.start(
            *python, _CLIENT, server.address, port, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.back() == "connected"

    def heard(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def back(self) -> str:
        assert self.client.stdout is not None
        return self.client.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.client.stdin is not None
        self.client.stdin.write(f"{line}\n")
        self.client.stdin.flush()

    def end(self) -> None:
        for child in (self.client, self.server):
            child.kill()
            child.wait(10)
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()


@pytest.fixture
def pair(hosts: list[Host]) -> Iterator[Pair]:
    pair = Pair(*hosts)
    yield pair
    pair.end()


def reaches(source: Host, target: Host) -> bool:
    """Whether a new connection is answered, even if only by a refusal."""
    code = (
        "import socket, sys; s = socket.socket(); s.settimeout(0.5); "
        "sys.exit(0 if s.connect_ex((sys.argv[1], 9)) == 111 else 1)"
    )
    return source.start(sys.executable, "-c", code, target.address).wait(30) == 0


def test_a_process_on_a_host_reaches_the_other_host(pair: Pair, hosts: list[Host]) -> None:
    pair.say("one")
    assert (pair.heard(), pair.back()) == ("heard one", "back one")
    assert hosts[0].processes() == [pair.server.pid]


def test_a_connection_outlives_an_unplugged_cable(pair: Pair, hosts: list[Host]) -> None:
    hosts[1].unplug()
    assert not reaches(hosts[1], hosts[0])
    pair.say("in the dark")
    hosts[1].plug()
    assert (pair.heard(), pair.back()) == ("heard in the dark", "back in the dark")


def test_one_way_is_closed_and_the_other_open(pair: Pair, hosts: list[Host]) -> None:
    server, client = hosts
    server.deafen(client)
    pair.say("you hear me")
    assert pair.heard() == "heard you hear me"
    assert not reaches(client, server), "no answer comes back"
    server.hear(client)
    assert pair.back() == "back you hear me"


def test_a_link_goes_down_and_up(hosts: list[Host]) -> None:
    hosts[0].link_down()
    assert not reaches(hosts[1], hosts[0])
    hosts[0].link_up()
    assert any(reaches(hosts[1], hosts[0]) for _ in range(10))


def test_nothing_is_left_even_if_a_process_still_runs() -> None:
    with Hosts(1) as [host]:
        child = host.start("sleep", "600")
        while not host.processes():
            pass
    assert child.wait(10) == -9
    assert host.name not in _names()


def test_what_a_killed_run_left_is_removed_by_the_next() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    name = f"mainspring-{dead.pid}-1-hub"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        with Hosts(1):
            assert name not in _names()
    finally:
        if name in _names():
            _remove(name)
