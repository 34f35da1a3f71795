"""Tokens a second of muster-train in several layouts on one machine, in alternation, beside one rank.

Every rank has one thread and 4,096 tokens a step (weak scaling), so the ratio to one rank is what the exchanges
leave, the busy neighbour core included. Ranks talk over loopback.

  python3 bench/train/layouts.py --programs build/release/bin
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from figures import machine, summary

# Ranks, settings. A pipeline and tensor-parallel ranks share one batch of as many tokens.
LAYOUTS = {
    "one rank": (1, ["train.batch=16"]),
    "two replicas": (2, ["train.batch=32"]),
    "two replicas, ZeRO-1": (2, ["train.batch=32", "mesh.zero=1"]),
    "two shards (ZeRO-3)": (2, ["train.batch=32", "mesh.shard=2"]),
    "two stages, 1F1B": (2, ["train.batch=32", "mesh.pp=2"]),
    "two cuts (tensor parallel)": (2, ["train.batch=32", "mesh.tp=2"]),
    "two cuts, sequence parallel": (2, ["train.batch=32", "mesh.tp=2", "mesh.sequence_parallel=true"]),
}


def make_shards(programs, folder):
    """A corpus of numbers in words: what it says does not matter here."""
    words = "zero one two three four five six seven eight nine".split()
    with open(f"{folder}/text.txt", "w") as text:
        for i in range(60_000):
            text.write(" ".join(words[int(d)] for d in str(i * 7919 % 100_003)) + "\n")
    run = lambda *arguments: subprocess.run([f"{programs}/muster-data", *arguments], check=True, capture_output=True)
    run("train-tokenizer", "--input", f"{folder}/text.txt", "--output", f"{folder}/tokenizer", "--vocab-size", "300")
    run("tokenize", "--input", f"{folder}/text.txt", "--tokenizer", f"{folder}/tokenizer/tokenizer.model",
        "--output", f"{folder}/shards")


def tokens_per_second(programs, folder, ranks, settings, steps):
    metrics = f"{folder}/metrics.jsonl"
    if os.path.exists(metrics):
        os.unlink(metrics)
    common = ["model.preset=bench", "model.vocab=4096", f"data.train={folder}/shards", "train.micro_batch=4",
              "train.sequence=256", "run.threads=1", f"train.steps={steps}", f"log.metrics={metrics}",
              "optim.warmup=1"]
    command = [f"{programs}/muster-train", "train", "--nproc", str(ranks)]
    for setting in common + settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, capture_output=True)
    rates = []
    with open(metrics) as lines:
        for line in lines:
            record = json.loads(line)
            if "tokens_per_s" in record:
                rates.append(record["tokens_per_s"])
    return statistics.median(rates[1:])  # the first step touches its memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", required=True, help="folder of muster-train and muster-data")
    parser.add_argument("--rounds", type=int, default=5, help="at least 2")
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds: quartiles need at least 2")
    rates = {name: [] for name in LAYOUTS}
    with tempfile.TemporaryDirectory(prefix="bench-layouts-") as folder:
        make_shards(arguments.programs, folder)
        for _ in range(arguments.rounds):
            for name, (ranks, settings) in LAYOUTS.items():
                rates[name].append(
                    tokens_per_second(arguments.programs, folder, ranks, settings, arguments.steps))
    print(machine())
    print("tokens/s of all ranks; per rank, of one rank's in the same round")
    for name, (ranks, _) in LAYOUTS.items():
        ratios = [100 * rate / ranks / one for rate, one in zip(rates[name], rates["one rank"])]
        print(f"{name:30} {statistics.median(rates[name]):7.0f}   {summary(ratios)} %")


if __name__ == "__main__":
    main()
