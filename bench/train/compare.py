"""The training step of bench_train_compute beside PyTorch eager, in alternation: the same model, batch, threads
and machine.

PyTorch gets what makes it fastest without a compiler: scaled_dot_product_attention, rms_norm, fused AdamW,
gradients set to None; and `torch.compile` with --compile. Needs a Python with torch (CPU) of the version that
muster-train links:

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
        loss_of = torch.compile(loss_of)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", required=True, help="bench_train_compute")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="steps a round, of each")
    parser.add_argument("--compile", action="store_true", help="torch.compile in place of eager")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.threads, arguments.compile)
    if not os.access(arguments.program, os.X_OK):
        parser.error(f"--program {arguments.program}: no such program; build the target bench_train_compute")
    command = [sys.executable, __file__, "--worker", "--program", "-", "--threads", str(arguments.threads)]
    peer = subprocess.Popen(
        command + (["--compile"] if arguments.compile else []),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)},
    )
    if peer.stdout.readline().strip() != "ready":
        sys.exit("the PyTorch side did not start; see above")
    mine, theirs, ratios = [], [], []
    for round_ in range(arguments.rounds):
        mine.append(ours(arguments.program, arguments.threads, arguments.steps))
        print(arguments.steps, file=peer.stdin, flush=True)
        theirs.append(float(peer.stdout.readline()))
        ratios.append(mine[-1] / theirs[-1])
        print(f"round {round_ + 1}: {mine[-1]:.0f} beside {theirs[-1]:.0f} tokens/s", flush=True)
    peer.stdin.close()
    peer.wait()
    kind = "torch.compile" if arguments.compile else "PyTorch eager"
    print(machine())
    print(
        f"threads {arguments.threads}: Muster {summary(mine, 2)}, "
        f"{kind} {summary(theirs, 2)} tokens/s, ratio {summary(ratios, 2)}"
    )


if __name__ == "__main__":
    main()
