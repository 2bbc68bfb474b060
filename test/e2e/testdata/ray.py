#!/usr/bin/env python3
"""Takes the place of `ray start`, of which it understands the options that docs/clusters.md has.

A head listens at its address and port. Every other node joins it there and learns the addresses of all, and each node then connects to
each other one at the address that this gave, as Ray's daemons do.
"""
import argparse
import json
import os
import socket
import threading
import time

options = argparse.ArgumentParser()
options.add_argument("start", choices=["start"])
options.add_argument("--head", action="store_true")
options.add_argument("--port", type=int)
options.add_argument("--address")
options.add_argument("--node-ip-address", required=True)
options.add_argument("--block", action="store_true", required=True)
options = options.parse_args()
lock, members, met = threading.Lock(), {}, {}


def listen(port):
    server = socket.create_server((options.node_ip_address, port))
    return server, server.getsockname()[1]


def each(server, serve):
    def run():
        while True:
            threading.Thread(target=serve, args=(server.accept()[0].makefile("rw"),), daemon=True).start()
    threading.Thread(target=run, daemon=True).start()


def answer(stream):  # another node: it hears who this is
    stream.write(options.node_ip_address + "\n")
    stream.flush()


def admit(stream):  # of the head: a node joins, and hears of those that joined until now, whenever it asks
    for line in stream:
        node = json.loads(line)
        with lock:
            members[node["ip"]] = node["port"]
            stream.write(json.dumps(members) + "\n")
        stream.flush()


server, own = listen(0)
each(server, answer)
if options.head:
    head, _ = listen(options.port)
    each(head, admit)
    options.address = f"{options.node_ip_address}:{options.port}"
deadline, host, port, stream = time.monotonic() + 60, *options.address.rsplit(":", 1), None
while len(met) < int(os.environ["NUM_NODES"]):
    if time.monotonic() > deadline:
        raise SystemExit(f"{options.node_ip_address} met only {sorted(met)}")
    try:
        stream = stream or socket.create_connection((host, int(port)), 5).makefile("rw")
        stream.write(json.dumps({"ip": options.node_ip_address, "port": own}) + "\n")
        stream.flush()
        for ip, at in json.loads(stream.readline()).items():
            if ip not in met:
                met[ip] = socket.create_connection((ip, at), 5).makefile().readline().strip()
    except OSError:  # it has not begun to listen
        pass
    time.sleep(0.1)  # between two questions
print("ray joined", " ".join(sorted(met.values())), flush=True)
threading.Event().wait()
