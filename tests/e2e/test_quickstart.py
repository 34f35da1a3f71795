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


def start(data, *more, programs=BIN, steps=3, tree=ROOT, cwd=None, environment=None):
    environment = (environment or os.environ) | ({"MUSTER_BIN": str(programs)} if programs else {})
    return subprocess.Popen([tree / "quickstart", "--data", data, "--steps", str(steps), *more], text=True, env=environment,
                            cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            start_new_session=True, preexec_fn=take_interrupts)


@pytest.fixture
def data(tmp_path):
    """A data directory that is not there yet; whatever a failed test leaves running on it ends."""
    yield tmp_path / "data"
    subprocess.run([BIN / "muster", "--data", tmp_path / "data", "down", "--now"], capture_output=True, timeout=60)


@pytest.fixture
def tree(tmp_path):
    """What of the repository the script needs beside the programs, in a folder that a test may change."""
    tree = tmp_path / "a clone"
    tree.mkdir()
    shutil.copy2(ROOT / "quickstart", tree)
    for folder in ("examples", "tools"):
        shutil.copytree(ROOT / folder, tree / folder)
    return tree


def type_next(out, tree, cwd, environment):
    """Types what stands below "Next", in a shell as the one that ran the script; a training of its own takes few steps."""
    example = tree / "examples/train.toml"
    example.write_text(re.sub(r'(?m)^"train.steps" = .*', '"train.steps" = 3', example.read_text()))
    lines = re.findall(r"^  (.+)$", out[out.index("\nNext\n"):], re.M)
    done = subprocess.run(["bash", "-exc", "\n".join(lines)], cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (lines, done.stdout, done.stderr)
    return lines, done.stdout


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


def test_whole_path_and_next(data, tree):
    run = start(data, steps=40, tree=tree, cwd=tree)
    out, _ = run.communicate(timeout=600)
    assert run.returncode == 0, out
    before, after = re.search(r"held-out text +([0-9.]+) -> ([0-9.]+) bits", out).groups()
    assert float(after) < float(before)
    first, last = re.search(r"training loss +([0-9.]+) -> ([0-9.]+) nats", out).groups()
    assert float(first) - float(last) > 2
    assert re.search(r"model +s3://quickstart/models/\S+/output/model\.tar\.gz", out)
    for phase in ("text", "tokenizer", "tokens", "training", "sample"):
        assert re.search(rf"^  {phase} +(\d+ min )?[0-9.]+ s$", out, re.M), phase
    assert processes_of(data) == []
    lines, shown = type_next(out, tree, tree, os.environ)
    assert re.search(r"^algo-1  done step=40/40 ", shown, re.M), shown
    assert ("aws sagemaker list-training-jobs" in lines) == (shutil.which("aws") is not None)
    assert not data.exists() and processes_of(data) == []


def test_next_of_a_kept_service_on_a_machine_without_aws(tmp_path, data, tree):
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in pathlib.Path("/usr/bin").iterdir():
        if program.name != "aws":
            (programs / program.name).symlink_to(program)
    environment = os.environ | {"PATH": str(programs)}
    run = start("data", "--keep", tree=tree, cwd=tmp_path, environment=environment)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    lines, shown = type_next(out, tree, tmp_path, environment)
    assert not any(line.startswith("aws") for line in lines) and "apt-get install awscli" in "".join(lines)
    assert len(re.findall(r"^quickstart-\S+ .*Completed", shown, re.M)) == 3, shown
    assert not data.exists() and processes_of(data) == []


@pytest.mark.parametrize("moment", ["== Text to S3", "== Processing job: a tokenizer", "== Training job", "eval step=0"])
def test_interrupt_leaves_nothing(data, moment):
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


# Stands for programs of Debian of which one, $STOPS, is what the test interrupts: it and a child stay until they are killed.
FAKE = """#!/bin/bash
name=${0##*/}
[[ $name != sudo || $1 == -* ]] || { while [[ $1 == env || $1 == *=* ]]; do shift; done; exec "$@"; }
[[ $name != dpkg-query || $STOPS == apt-get ]] || echo installed
[[ $name == "$STOPS" && $* =~ install|--build ]] || exit 0
tail -f "$0" >/dev/null &
echo begun >"$BEGUN"
wait
"""


@pytest.mark.parametrize("stops", ["apt-get", "cmake"])
def test_interrupt_of_install_and_build_leaves_nothing(tmp_path, data, tree, stops):
    fakes, temporary, begun = tmp_path / "fakes", tmp_path / "temporary", tmp_path / "begun"
    fakes.mkdir()
    temporary.mkdir()
    os.mkfifo(begun)
    for name in ("apt-get", "cmake", "dpkg", "dpkg-query", "sudo"):
        (fakes / name).write_text(FAKE)
        (fakes / name).chmod(0o755)
    (tree / "tools/fetch-libtorch").write_text("#!/bin/sh\n")
    run = start(data, programs=None, tree=tree, cwd=tree, environment=os.environ | {"MUSTER_BIN": "",
        "PATH": f"{fakes}:{os.environ['PATH']}", "TMPDIR": str(temporary), "STOPS": stops, "BEGUN": str(begun)})
    assert begun.read_text() == "begun\n"
    assert processes_of(fakes)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=30)
    assert run.returncode == 130, out
    assert "quickstart: stopping" in out and "failed while" not in out
    assert processes_of(tmp_path) == [] and list(temporary.iterdir()) == [] and not data.exists()


@pytest.mark.parametrize("keep", [True, False])
def test_after_a_failed_job_the_logs_can_be_looked_at(tmp_path, data, keep):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("muster", "musterd", "muster-runner"):
        shutil.copy2(BIN / name, programs)
    (programs / "muster-data").write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    (programs / "muster-data").chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # whom jobs run as must reach the program
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
