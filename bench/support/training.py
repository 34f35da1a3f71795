"""Runs of muster-train for the programs of bench/train: their corpus, settings and settled figures."""
import json
import os
import re
import statistics
import subprocess


def make_shards(programs, folder):
    """A corpus of numbers in words, in `folder`/shards: what it says does not matter to a measurement."""
    words = "zero one two three four five six seven eight nine".split()
    with open(f"{folder}/text.txt", "w") as text:
        for i in range(60_000):
            text.write(" ".join(words[int(d)] for d in str(i * 7919 % 100_003)) + "\n")
    run = lambda *arguments: subprocess.run([f"{programs}/muster-data", *arguments], check=True, capture_output=True)
    run("train-tokenizer", "--input", f"{folder}/text.txt", "--output", f"{folder}/tokenizer", "--vocab-size", "300")
    run("tokenize", "--input", f"{folder}/text.txt", "--tokenizer", f"{folder}/tokenizer/tokenizer.model",
        "--output", f"{folder}/shards")


def settings(values):
    """Command line words of muster-train for a mapping of keys to values."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def train(programs, ranks, values, **options):
    """Starts muster-train on this machine and gives its process, with its output on a pipe, as text."""
    command = [f"{programs}/muster-train", "train", "--nproc", str(ranks), *settings(values)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def finish(process):
    """The whole output of a run, which must have ended well."""
    output = process.communicate()[0]
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(process.args)}\nended with {process.returncode}:\n{output}")
    return output


def tokens_per_second(metrics):
    """The median over the steps of a run but the first, which touches its memory."""
    with open(metrics) as lines:
        rates = [record["tokens_per_s"] for record in map(json.loads, lines) if record["type"] == "step"]
    return statistics.median(rates[1:])


def exchange_share(metrics):
    """The median share of a step in which rank 0 is in exchanges, waiting for other ranks included; not the first."""
    with open(metrics) as lines:
        steps = [record for record in map(json.loads, lines) if record["type"] == "step"]
    return statistics.median(step["exchange_s"] / step["seconds"] for step in steps[1:])


def ranks_of(process):
    """Process ids of the ranks that muster-train has started: they have no children of their own."""
    children = lambda pid: read(f"/proc/{pid}/task/{pid}/children").split()
    return [pid for pid in children(process.pid) if not children(pid)]


def memory(pid, kind):
    """VmRSS or VmHWM (the most it was) of a process, in MiB; None: it is gone, or going."""
    found = re.search(rf"^{kind}:\s+(\d+) kB", read(f"/proc/{pid}/status"), re.M)
    return int(found[1]) / 1024 if found else None


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""
