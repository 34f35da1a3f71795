"""Tokens a second of muster-train in several layouts on one machine, in alternation, beside one rank.

Every rank has one thread and 4,096 tokens a step (weak scaling). Ranks talk over loopback. Two cores that are both
busy may be slower than one alone, whatever runs on them: so two rows exchange nothing, two runs of one rank at once,
and two processes that do nothing but matrix products. Of what two runs at once reach, the rest is what the exchange
takes, and what ranks wait for the slowest of them: two runs that know nothing of each other don't.

  python3 bench/train/layouts.py --programs build/release/bin
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from figures import machine, summary
from training import exchange_share, finish, make_shards, tokens_per_second, train

ALONE, APART = "one rank", "two runs of one rank at once"
GEMM_ALONE, GEMM_APART = "matrix products", "two processes of matrix products"

# Runs at once, ranks of each, settings. A pipeline and tensor-parallel ranks share one batch of as many tokens.
LAYOUTS = {
    ALONE: (1, 1, {}),
    APART: (2, 1, {}),
    "two replicas": (1, 2, {}),
    "two replicas, ZeRO-1": (1, 2, {"mesh.zero": 1}),
    "two shards (ZeRO-3)": (1, 2, {"mesh.shard": 2}),
    "two stages, 1F1B": (1, 2, {"mesh.pp": 2}),
    "two cuts (tensor parallel)": (1, 2, {"mesh.tp": 2}),
    "two cuts, sequence parallel": (1, 2, {"mesh.tp": 2, "mesh.sequence_parallel": "true"}),
}


def training_rate(programs, folder, name, steps):
    runs, ranks, layout = LAYOUTS[name]
    metrics = [f"{folder}/metrics-{run}.jsonl" for run in range(runs)]
    values = {"model.preset": "bench", "model.vocab": 4096, "data.train": f"{folder}/shards", "train.micro_batch": 4,
              "train.batch": 16 * ranks, "train.sequence": 256, "run.threads": 1, "train.steps": steps,
              "optim.warmup": 1, **layout}
    for path in metrics:
        pathlib.Path(path).unlink(missing_ok=True)
    for process in [train(programs, ranks, values | {"log.metrics": path}) for path in metrics]:
        finish(process)
    return sum(map(tokens_per_second, metrics)), exchange_share(metrics[0])


class Gemm:
    """bench_gemm in a process of its own, idle until it is asked."""

    def __init__(self, programs):
        self.process = subprocess.Popen([f"{programs}/bench_gemm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.process.stdout.readline()  # ready

    def start(self, seconds):
        print(seconds, file=self.process.stdin, flush=True)

    def rate(self):
        return float(self.process.stdout.readline())


def gemm_rate(processes, seconds=3):
    for process in processes:
        process.start(seconds)
    return sum([process.rate() for process in processes])


def measure_round(programs, folder, gemm, names, steps):
    """Tokens/s, GFLOP/s of each name, and the share of a step in which rank 0 is in exchanges."""
    rates = {GEMM_ALONE: (gemm_rate(gemm[:1]), 0.0), GEMM_APART: (gemm_rate(gemm), 0.0)}
    return rates | {name: training_rate(programs, folder, name, steps) for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", required=True, help="folder of muster-train, muster-data and bench_gemm")
    parser.add_argument("--rounds", type=int, default=5, help="at least 2")
    parser.add_argument("--steps", type=int, default=4, help="of a run; the first does not count")
    parser.add_argument("--only", default="", help="layouts with this in their name, beside those without exchange")
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.steps < 2:
        parser.error("--rounds, --steps: at least 2 are needed")
    names = [name for name in LAYOUTS if name in (ALONE, APART) or arguments.only in name]
    rounds = []
    print(machine(), flush=True)
    gemm = [Gemm(arguments.programs), Gemm(arguments.programs)]
    with tempfile.TemporaryDirectory(prefix="bench-layouts-") as folder:
        make_shards(arguments.programs, folder)
        for _ in range(arguments.rounds):
            rounds.append(measure_round(arguments.programs, folder, gemm, names, arguments.steps))
            print("  ".join(f"{rate:.0f}" for rate, _ in rounds[-1].values()), flush=True)
    for process in gemm:
        process.process.stdin.close()
        process.process.wait()
    print("in all (tokens/s, or GFLOP/s); each of two, of one alone; of two runs that exchange nothing; in exchanges")
    for name in (GEMM_ALONE, GEMM_APART, *names):
        of_gemm = name in (GEMM_ALONE, GEMM_APART)
        rates = [rates[name][0] for rates in rounds]
        ratio = lambda peer, times: summary([100 * rates[name][0] / times / rates[peer][0] for rates in rounds])
        alone = ratio(GEMM_ALONE if of_gemm else ALONE, 1 if name in (GEMM_ALONE, ALONE) else 2)
        exchanges = summary([100 * rates[name][1] for rates in rounds])
        apart = "" if of_gemm or name in (ALONE, APART) else f"   {ratio(APART, 1)} %   {exchanges} %"
        print(f"{name:34} {statistics.median(rates):7.0f}   {alone} %{apart}")


if __name__ == "__main__":
    main()
