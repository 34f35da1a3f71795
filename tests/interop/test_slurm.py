"""muster-train started by a real srun: two nodes on this machine (bench/latency/local-slurm)."""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

import pytest

from conftest import BIN, ROOT


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def slurm():
    for program in ("srun", "slurmctld", "slurmd", "munged"):
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin") is None:
            pytest.skip(f"there is no {program}")
    if os.geteuid() != 0:
        pytest.skip("local-slurm needs root")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 6817)) == 0:
            pytest.skip("port 6817 is taken: another Slurm runs here")
    folder = pathlib.Path(tempfile.mkdtemp()) / "slurm"
    script = ROOT / "bench/latency/local-slurm"
    # Its daemons keep the descriptors they are given: no pipes.
    subprocess.run([script, "up", folder], check=True, timeout=60, stdout=subprocess.DEVNULL)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    yield environment
    # What a failed test has left must not outlive its Slurm.
    subprocess.run(["scancel", "--signal=KILL", "--user=root"], env=environment, timeout=60)
    subprocess.run([script, "down", folder], check=True, timeout=60, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder.parent)


def srun(slurm, token_shards, tasks, *more, srun_options=(), environment=None, steps=4):
    settings = ["model.preset=tiny", "train.sequence=16", "train.batch=8", "train.micro_batch=2",
                f"train.steps={steps}", "run.threads=1", "log.every=1", f"data.train={token_shards}"]
    command = ["srun", f"-n{tasks}", *srun_options, BIN / "muster-train", "train", "--job-root", "/nonexistent", *more]
    for setting in settings:
        command += ["--set", setting]
    return subprocess.Popen(command, env=slurm | (environment or {}), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return out


def losses(out):
    return re.findall(r"^step=(\d+)/\d+ loss=([0-9.]+)", out, re.MULTILINE)


def test_the_tasks_of_one_node_are_ranks(slurm, token_shards):
    out = finish(srun(slurm, token_shards, 2, srun_options=["-N1"]))
    assert "start ranks=2 " in out
    assert "done step=4/4" in out
    assert out.count("start ranks=") == 1


def test_a_task_a_node_is_an_agent_and_the_bits_are_the_same(slurm, token_shards):
    # The nodes' names lead nowhere here, so the address is given.
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    agents = finish(srun(slurm, token_shards, 2, "--nproc", "2", srun_options=["-N2", "--ntasks-per-node=1"],
                         environment=master))
    assert "start ranks=4 " in agents
    master["MASTER_PORT"] = str(free_port())
    ranks = finish(srun(slurm, token_shards, 4, srun_options=["-N2", "--ntasks-per-node=2"], environment=master))
    assert "start ranks=4 " in ranks
    assert len(losses(ranks)) == 4
    assert losses(ranks) == losses(agents)


def test_uneven_tasks_are_refused(slurm, token_shards):
    process = srun(slurm, token_shards, 3, srun_options=["-N2"])
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "every node needs as many tasks; give srun --ntasks-per-node=N" in err


def test_scancel_saves_and_stops(slurm, token_shards, tmp_path):
    def start():
        return srun(slurm, token_shards, 2, "--set", f"checkpoint.dir={tmp_path}", "--set", "checkpoint.every=0",
                    srun_options=["-N1", "--job-name=stopping"], steps=1_000_000)

    def stop(process):
        job = subprocess.run(["squeue", "-h", "-o", "%i", "--name=stopping"], env=slurm, check=True,
                             capture_output=True, text=True).stdout.strip()
        subprocess.run(["scancel", "--signal=TERM", job], env=slurm, check=True)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 75, out + err
        return re.search(r"^stopped at step (\d+) of 1000000; start again to go on$", out, re.MULTILINE)[1]

    def read_until(process, start_of_line):
        for line in process.stdout:
            if line.startswith(start_of_line):
                return line
        raise AssertionError(process.communicate(timeout=60)[1])

    process = start()
    read_until(process, "step=3/")
    step = stop(process)
    process = start()
    assert read_until(process, "resume ").startswith(f"resume step={step} ")
    read_until(process, "step=")
    stop(process)
