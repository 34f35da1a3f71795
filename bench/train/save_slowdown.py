"""What a save in the background costs the training, by the clock of whoever reads its output.

One run of muster-train with the model of width 512, which saves every 2 x WINDOW steps: the WINDOW steps from a save
on, with its stall and with the file being written, beside the WINDOW steps after them, without. The difference is what
a save costs; the slowdown is that over as many steps as there are between two saves of a real run (--every).

  python3 bench/train/save_slowdown.py --programs build/release/bin
"""

import argparse
import pathlib
import re
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from figures import machine, summary
from training import make_shards, train


def run(programs, folder, ranks, threads, window, saves):
    """When the line of each step came; of each save, the step after which it was done, its stall and its time."""
    values = {
        "model.preset": "bench", "model.vocab": 4096, "data.train": f"{folder}/shards", "train.micro_batch": 4,
        "train.batch": 4 * ranks, "train.sequence": 256, "run.threads": threads, "optim.warmup": 1, "log.every": 1,
        "train.steps": 2 * window * (saves + 1), "checkpoint.dir": f"{folder}/ckpt-{ranks}-{threads}",
        "checkpoint.every": 2 * window, "checkpoint.keep": 1,
    }
    process = train(programs, ranks, values)
    at, done = {}, {}
    output = []
    for line in iter(process.stdout.readline, ""):
        output.append(line)
        if found := re.match(r"step=(\d+)/", line):
            at[int(found[1])] = time.monotonic()
        elif found := re.match(r"checkpoint step=(\d+) .* stall_s=([0-9.]+) seconds=([0-9.]+)", line):
            done[int(found[1])] = (max(at), float(found[2]), float(found[3]))
    if process.wait() != 0:
        sys.exit(f"muster-train ended with {process.returncode}:\n{''.join(output)}")
    return at, done


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", required=True, help="folder of muster-train and muster-data")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--window", type=int, default=4, help="steps; a save must be done in so many")
    parser.add_argument("--saves", type=int, default=10, help="at least 2")
    parser.add_argument("--every", type=int, default=100, help="steps between saves, for which the slowdown is told")
    a = parser.parse_args()
    if a.saves < 2:
        parser.error("--saves: quartiles need at least 2")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-save-") as folder:
        make_shards(a.programs, folder)
        at, done = run(a.programs, folder, a.ranks, a.threads, a.window, a.saves)
    costs, plain, stalls, seconds = [], [], [], []
    for save in range(2 * a.window, 2 * a.window * (a.saves + 1), 2 * a.window):
        last, stall, took = done[save]
        middle = save + a.window
        if last >= middle:
            sys.exit(f"the save of step {save} took {took} s and was not done in {a.window} steps: a longer --window")
        without = at[middle + a.window] - at[middle]
        costs.append(at[middle] - at[save] - without)
        plain.append(without / a.window)
        stalls.append(1000 * stall)
        seconds.append(took)
    share = [100 * cost / (a.every * statistics.median(plain)) for cost in costs]
    print(f"ranks {a.ranks}, threads {a.threads}: a step {summary(plain, 3)} s; a save stalls {summary(stalls)} ms, "
          f"is done after {summary(seconds, 2)} s and costs {summary([1000 * c for c in costs])} ms of training: "
          f"slowdown {summary(share, 2)} % at a save every {a.every} steps")


if __name__ == "__main__":
    main()
