"""./quickstart with a few steps: the whole path, and that Ctrl-C leaves nothing."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BIN, ROOT


def take_interrupts():
    """A parent in the background of a script ignores SIGINT, and what is ignored at its start no shell can trap."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(data, *more, programs=BIN, steps=3):
    return subprocess.Popen([ROOT / "quickstart", "--data", data, "--steps", str(steps), *more], text=True,
                            env=os.environ | {"MUSTER_BIN": str(programs)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            start_new_session=True, preexec_fn=take_interrupts)


def processes_of(data):
    """Those that name the folder, and those in a node: there the folder is a mount of its own."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        for file in ("cmdline", "mountinfo"):
            try:
                if entry.name.isdigit() and str(data).encode() in (entry / file).read_bytes():
                    found.append(entry.name)
                    break
            except OSError:
                pass
    return found


def test_whole_path_and_clean(tmp_path):
    data = tmp_path / "data"
    run = start(data, steps=40)
    out, _ = run.communicate(timeout=600)
    assert run.returncode == 0, out
    before, after = re.search(r"held-out text +([0-9.]+) -> ([0-9.]+) bits", out).groups()
    assert float(after) < float(before)
    first, last = re.search(r"training loss +([0-9.]+) -> ([0-9.]+) nats", out).groups()
    assert float(first) - float(last) > 2
    assert re.search(r"model +s3://quickstart/models/\S+/output/model\.tar\.gz", out)
    for phase in ("text", "tokenizer", "tokens", "training", "sample"):
        assert re.search(rf"^  {phase} +[0-9.]+ s$", out, re.M), phase
    assert processes_of(data) == []
    # What it says to type next serves the same jobs again.
    muster = [BIN / "muster", "--data", data]
    subprocess.run([*muster, "up", "--detach"], check=True, stdout=subprocess.DEVNULL, timeout=60)
    jobs = subprocess.run([*muster, "jobs"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert len(re.findall(r"quickstart-\S+ .*Completed", jobs)) == 3, jobs
    cleaned = subprocess.run([ROOT / "quickstart", "--clean", "--data", data], capture_output=True, text=True, timeout=60,
                             env=os.environ | {"MUSTER_BIN": str(BIN)})
    assert cleaned.returncode == 0, cleaned.stderr
    assert not data.exists() and processes_of(data) == []


@pytest.mark.parametrize("moment", ["== Text to S3", "== Processing job: a tokenizer", "== Training job", "eval step=0"])
def test_interrupt_leaves_nothing(tmp_path, moment):
    data = tmp_path / "data"
    run = start(data)
    for line in run.stdout:
        if moment in line:
            break
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130
    assert time.monotonic() - began < 20
    assert processes_of(data) == []


@pytest.mark.parametrize("keep", [True, False])
def test_after_a_failed_job_the_logs_can_be_looked_at(tmp_path, keep):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("muster", "musterd", "muster-runner"):
        shutil.copy2(BIN / name, programs)
    (programs / "muster-data").write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    (programs / "muster-data").chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # whom jobs run as must reach the program
    data = tmp_path / "data"
    run = start(data, *(["--keep"] if keep else []), programs=programs)
    out, _ = run.communicate(timeout=120)
    assert run.returncode == 10, out
    commands = re.findall(r"^  (\S+/muster --data .*)$", out[out.index("Look at what is there with"):], re.M)
    shown = ""
    assert len(commands) == (3 if keep else 4), out
    assert ("up --detach" in commands[0]) != keep
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stderr)
        shown += done.stdout
    assert "no such luck" in shown and "Failed" in shown
    assert processes_of(data) == []


def test_wrong_arguments():
    for arguments, words in ((["--steps", "many"], "--steps needs a number"), (["--bogus"], "unknown argument --bogus"),
                             (["--data"], "--data needs a folder")):
        run = subprocess.run([ROOT / "quickstart", *arguments], capture_output=True, text=True, timeout=20)
        assert run.returncode == 2 and words in run.stderr
    run = subprocess.run([ROOT / "quickstart", "--clean", "--data", "/nothing-here"], capture_output=True, text=True,
                         timeout=20)
    assert run.returncode == 1 and "nothing removed" in run.stderr
