"""Shard groups that span two nodes, over a link shaped by `tc tbf`: gathers of two levels beside flat ones, and with
--train steps of muster-train with them, and with shard groups that stay inside a node (MiCS).

The nodes are network namespaces of this machine, with two ranks each, joined by a pair of interfaces of which each
end sends at --rate. They are made at the start and removed at the end, whatever happens between. Needs root.

  python3 bench/train/mics.py --programs build/release/bin
"""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from figures import machine, summary
from training import finish, make_shards, settings, tokens_per_second

NODES, NODE_RANKS = 2, 2
PORT = 29500

# What mesh.shard and mesh.gather are; the rest of the four ranks are replicas.
LAYOUTS = {
    "ZeRO-3 over both nodes, flat": {"mesh.shard": 4, "mesh.gather": "flat"},
    "ZeRO-3 over both nodes, two levels": {"mesh.shard": 4, "mesh.gather": "hierarchical"},
    "shards inside a node, two replicas": {"mesh.shard": 2},
}


def address(node):
    return f"10.77.0.{node + 1}"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def linked_nodes(rate):
    """Names of two network namespaces with a link between them that carries `rate` each way."""
    names = [f"bench-mics-{os.getpid()}-{node}" for node in range(NODES)]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "link0", "netns", names[0], "type", "veth", "peer", "name", "link0", "netns", names[1])
        for node, name in enumerate(names):
            ip("-n", name, "address", "add", f"{address(node)}/24", "dev", "link0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "link0", "up")
            # A bucket of some 64 KiB packets, as the interface is handed them; 50 ms of them may wait.
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "link0", "root", "tbf", "rate", rate,
                            "burst", "256kb", "latency", "50ms"], check=True)
        yield names
    finally:
        for name in made:
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name])


def in_node(name, command):
    return subprocess.Popen(["ip", "netns", "exec", name, *command], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def measure_gathers(programs, names, mib, rounds):
    ranks = range(NODES * NODE_RANKS)
    processes = [
        in_node(names[rank // NODE_RANKS],
                [f"{programs}/bench_gather", str(rank), str(len(ranks)), str(NODE_RANKS), address(0), str(PORT),
                 address(rank // NODE_RANKS), str(mib), str(rounds)])
        for rank in ranks
    ]
    print("".join([finish(process) for process in processes]), end="", flush=True)


def training_rate(programs, names, folder, layout, steps):
    """Tokens/s of all ranks."""
    values = {"model.preset": "bench", "model.vocab": 4096, "data.train": f"{folder}/shards", "train.micro_batch": 1,
              "train.batch": NODES * NODE_RANKS, "train.sequence": 256, "run.threads": 1, "train.steps": steps,
              "optim.warmup": 1, "log.metrics": f"{folder}/metrics.jsonl", **layout}
    pathlib.Path(values["log.metrics"]).unlink(missing_ok=True)
    processes = [
        in_node(name, [f"{programs}/muster-train", "train", "--nproc", str(NODE_RANKS), "--nodes", str(NODES),
                       "--node-rank", str(node), "--master", f"{address(0)}:{PORT}", *settings(values)])
        for node, name in enumerate(names)
    ]
    for process in processes:
        finish(process)
    return tokens_per_second(values["log.metrics"])


def measure_training(programs, names, rounds, steps):
    rates = {layout: [] for layout in LAYOUTS}
    with tempfile.TemporaryDirectory(prefix="bench-mics-") as folder:
        make_shards(programs, folder)
        for _ in range(rounds):
            for layout, values in LAYOUTS.items():
                rates[layout].append(training_rate(programs, names, folder, values, steps))
    flat = next(iter(rates.values()))
    for layout, of in rates.items():
        print(f"{layout:36} {summary(of, 0)} tokens/s, of the first {summary([a / b for a, b in zip(of, flat)], 2)}",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", required=True, help="folder of muster-train, muster-data and bench_gather")
    parser.add_argument("--rate", default="1gbit", help="of the link, each way, as tc writes it")
    parser.add_argument("--mib", type=int, default=64, help="of what is gathered")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--train", type=int, default=0, help="rounds of training runs instead, at least 2")
    parser.add_argument("--steps", type=int, default=6, help="of a training run; the first does not count")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces and tc need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through linked_nodes' end
    print(f"{machine()}; a link of {arguments.rate} each way", flush=True)
    with linked_nodes(arguments.rate) as names:
        if arguments.train:
            measure_training(arguments.programs, names, arguments.train, arguments.steps)
        else:
            measure_gathers(arguments.programs, names, arguments.mib, arguments.rounds)


if __name__ == "__main__":
    main()
