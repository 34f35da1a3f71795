"""The training step of bench_train_compute beside PyTorch's, eager and by torch.compile, in alternation: the same
model, batch, threads and machine.

PyTorch gets what makes it fastest: scaled_dot_product_attention, rms_norm, fused AdamW, gradients set to None; and
of torch.compile the loss with its backward as one graph, with fixed shapes. Needs a Python with torch (CPU) of the
version that muster-train links, and for torch.compile a C++ compiler and Python's headers:

  python3 bench/train/compare.py --program build/release/bin/bench_train_compute --threads 1
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from figures import machine, summary

SHAPE = dict(layers=4, width=512, heads=8, ffn=1376, vocab=4096, rows=4, sequence=256)  # preset "bench"


def worker(threads, compiled):
    """Reads a number of steps a line, answers tokens/s, the median over the steps."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    s = SHAPE
    width, heads, dim = s["width"], s["heads"], s["width"] // s["heads"]

    def parameter(*shape):
        return torch.nn.Parameter(torch.randn(*shape) * 0.02)

    embedding, head = parameter(s["vocab"], width), parameter(s["vocab"], width)
    final = torch.nn.Parameter(torch.ones(width))
    layers = [
        dict(
            norm1=torch.nn.Parameter(torch.ones(width)),
            qkv=parameter(3 * width, width),
            out=parameter(width, width),
            norm2=torch.nn.Parameter(torch.ones(width)),
            gate_up=parameter(2 * s["ffn"], width),
            down=parameter(width, s["ffn"]),
        )
        for _ in range(s["layers"])
    ]
    parameters = [embedding, head, final] + [p for layer in layers for p in layer.values()]
    optimizer = torch.optim.AdamW(
        [
            dict(params=[p for p in parameters if p.dim() == 2], weight_decay=0.1),
            dict(params=[p for p in parameters if p.dim() == 1], weight_decay=0.0),
        ],
        lr=3e-4,
        betas=(0.9, 0.95),
        fused=True,
    )
    angle = torch.outer(torch.arange(s["sequence"]), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
    cosine, sine = angle.cos(), angle.sin()

    def rotate(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)

    def loss_of(tokens, targets):
        x = F.embedding(tokens, embedding)
        for layer in layers:
            qkv = F.rms_norm(x, (width,), layer["norm1"], 1e-5) @ layer["qkv"].t()
            q, k, v = (
                part.view(s["rows"], s["sequence"], heads, dim).transpose(1, 2) for part in qkv.chunk(3, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + mixed.transpose(1, 2).reshape(s["rows"], s["sequence"], width) @ layer["out"].t()
            gate, up = (F.rms_norm(x, (width,), layer["norm2"], 1e-5) @ layer["gate_up"].t()).chunk(2, dim=-1)
            x = x + (F.silu(gate) * up) @ layer["down"].t()
        logits = F.rms_norm(x, (width,), final, 1e-5) @ head.t()
        return F.cross_entropy(logits.view(-1, s["vocab"]), targets.view(-1))

    if compiled:
        loss_of = torch.compile(loss_of, fullgraph=True, dynamic=False)
    tokens = torch.randint(s["vocab"], (s["rows"], s["sequence"]))
    targets = torch.randint(s["vocab"], (s["rows"], s["sequence"]))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(tokens, targets).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    for _ in range(3):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        print(s["rows"] * s["sequence"] / statistics.median(seconds), flush=True)


def ours(program, threads, steps):
    out = subprocess.run(
        [program, "bench", str(SHAPE["rows"]), str(steps), str(threads)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return float(re.search(r"threads \d+ +([0-9.]+)", out)[1])


class Peer:
    """PyTorch in a process of its own, idle until it is asked for steps."""

    NAMES = {"eager": "PyTorch eager", "compile": "torch.compile"}

    def __init__(self, name, threads):
        self.name = self.NAMES[name]
        command = [sys.executable, __file__, "--worker", name, "--program", "-", "--threads", str(threads)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"{self.name} did not start; see above")
        self.rates, self.ratios = [], []

    def measure(self, steps, mine):
        print(steps, file=self.process.stdin, flush=True)
        self.rates.append(float(self.process.stdout.readline()))
        self.ratios.append(mine / self.rates[-1])

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", required=True, help="bench_train_compute")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7, help="at least 2")
    parser.add_argument("--steps", type=int, default=6, help="steps a round, of each")
    parser.add_argument("--peers", default="eager,compile", help="of eager and compile, with a comma between")
    parser.add_argument("--worker", choices=Peer.NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.threads, arguments.worker == "compile")
    if not os.access(arguments.program, os.X_OK):
        parser.error(f"--program {arguments.program}: no such program; build the target bench_train_compute")
    names = arguments.peers.split(",")
    if unknown := set(names) - set(Peer.NAMES):
        parser.error(f"--peers: {', '.join(unknown)}: there are {', '.join(Peer.NAMES)}")
    if arguments.rounds < 2:
        parser.error("--rounds: quartiles need at least 2")
    peers = [Peer(name, arguments.threads) for name in names]
    mine = []
    print(machine())
    for round_ in range(arguments.rounds):
        mine.append(ours(arguments.program, arguments.threads, arguments.steps))
        for peer in peers:
            peer.measure(arguments.steps, mine[-1])
        print(f"round {round_ + 1}: {mine[-1]:.0f} beside {', '.join(f'{p.rates[-1]:.0f}' for p in peers)} tokens/s",
              flush=True)
    print(f"threads {arguments.threads}: Muster {summary(mine, 0)} tokens/s")
    for peer in peers:
        peer.end()
        print(f"  {peer.name} {summary(peer.rates, 0)} tokens/s, ratio {summary(peer.ratios, 2)}")


if __name__ == "__main__":
    main()
