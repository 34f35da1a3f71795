"""The memory that `muster-train plan` foretells beside what the ranks of the same run take.

Taken is the most resident memory of a rank (VmHWM) less that of the same run with a model of next to nothing: the
program, its libraries, its connections. Of several ranks the one that takes most, as in the plan.

  python3 bench/train/memory.py --programs build/release/bin
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from figures import machine
from training import finish, make_shards, memory, ranks_of, settings, train

LAYOUTS = {
    "one rank": (1, {}),
    "one rank, checkpoints": (1, {"checkpoint.dir": "{folder}/ckpt"}),
    "one rank, selective": (1, {"train.activation_checkpointing": "selective"}),
    "one rank, full": (1, {"train.activation_checkpointing": "full"}),
    "one rank, bf16": (1, {"train.precision": "bf16"}),
    "two replicas": (2, {}),
    "two replicas, ZeRO-1": (2, {"mesh.zero": 1}),
    "two shards (ZeRO-3)": (2, {"mesh.shard": 2}),
    "two shards, bf16": (2, {"mesh.shard": 2, "train.precision": "bf16"}),
    "two stages, 1F1B": (2, {"mesh.pp": 2}),
    "two cuts (tensor parallel)": (2, {"mesh.tp": 2}),
    "two cuts, sequence parallel": (2, {"mesh.tp": 2, "mesh.sequence_parallel": "true"}),
}
# A model that counts for nothing beside those: 26 thousand parameters.
NO_MODEL = {"model.preset": "tiny", "model.vocab": 512, "model.max_sequence": 0}
UNITS = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 2**10, "TiB": 2**20}


def planned(programs, ranks, values):
    """MiB of the rank that needs most; and parameters of the model, as written."""
    command = [f"{programs}/muster-train", "plan", "--ranks", str(ranks), *settings(values)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    table = re.search(r"memory of a rank\n.*\n((?: +\d.*\n)+)", text)[1]
    totals = [re.search(r"([0-9.]+) (\w+)$", row) for row in table.splitlines()]
    return max(float(total[1]) * UNITS[total[2]] for total in totals), re.search(r"model +(.*?) parameters", text)[1]


def taken(programs, ranks, values):
    """The most resident memory of a rank, in MiB."""
    process = train(programs, ranks, values)
    most = 0
    for line in iter(process.stdout.readline, ""):
        if line.startswith("step="):
            most = max([most] + [memory(pid, "VmHWM") or 0 for pid in ranks_of(process)])
    finish(process)
    return most


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", required=True, help="folder of muster-train and muster-data")
    parser.add_argument("--preset", default="llama-110m", help="with a vocabulary of 32,000 and a head of its own")
    parser.add_argument("--only", default="", help="layouts with this in their name")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        make_shards(arguments.programs, folder)
        for name, (ranks, layout) in LAYOUTS.items():
            if arguments.only not in name:
                continue
            values = {"data.train": f"{folder}/shards", "train.micro_batch": 2, "train.batch": 4 * ranks,
                      "train.sequence": 256, "train.steps": 2, "log.every": 1}
            values |= {key: str(value).format(folder=folder) for key, value in layout.items()}
            model = {"model.preset": arguments.preset, "model.vocab": 32000, "model.tied": "false"}
            plan, parameters = planned(arguments.programs, ranks, values | model)
            empty = taken(arguments.programs, ranks, values | NO_MODEL)
            shutil.rmtree(f"{folder}/ckpt", ignore_errors=True)
            whole = taken(arguments.programs, ranks, values | model)
            print(f"{name:28} {parameters}: planned {plan:6.0f} MiB, taken {whole:6.0f} - {empty:4.0f} = "
                  f"{whole - empty:6.0f} MiB, planned / taken {plan / (whole - empty):.3f}", flush=True)


if __name__ == "__main__":
    main()
