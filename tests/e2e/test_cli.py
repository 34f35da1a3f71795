"""The command line `muster`: what scripts rely on, and that a restart of the service is survived."""
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading

import pytest
from conftest import BIN, ROOT, training_request, unique, wait_for, wait_status


class Muster:
    """Runs the command line on one data directory."""

    def __init__(self, data):
        self.data = data

    def __call__(self, *arguments, timeout=60):
        return subprocess.run([BIN / "muster", "--data", self.data, *arguments], capture_output=True, text=True,
                              timeout=timeout)

    def good(self, *arguments):
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments):
        return subprocess.Popen([BIN / "muster", "--data", self.data, *arguments], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def job(self, name):
        return json.loads(self.good("--output", "json", "job", name))

    def status(self, name):
        return self.job(name)["TrainingJobStatus"]


@pytest.fixture
def muster(shared, bucket):
    return Muster(shared.data)


@pytest.fixture
def away(own):
    own.client("s3").create_bucket(Bucket="e2e")
    return own, Muster(own.data)


@pytest.fixture
def own_muster(tmp_path):
    """A service started by `muster up` itself."""
    command = Muster(tmp_path / "data")
    command.good("up", "--detach", "--listen", "127.0.0.1:0", "--nodes", "2")
    command.good("mb", "s3://e2e")
    yield command
    command("down", "--now")


def write_job(path, script, kind="Training", **more):
    """A request in TOML that runs a shell script."""
    specification = {"Training": "AlgorithmSpecification", "Processing": "AppSpecification"}[kind]
    image = {"Training": "TrainingImage", "Processing": "ImageUri"}[kind]
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    lines += [f"[{specification}]", f'{image} = "muster/host"',
              f"ContainerEntrypoint = {json.dumps(['/bin/bash', '-c', script])}"]
    path.write_text("\n".join(lines) + "\n")
    return path


def submit(muster, tmp_path, script, name=None):
    name = name or unique("cli")
    muster.good("train", write_job(tmp_path / f"{name}.toml", script, TrainingJobName=name))
    return name


def counting(lines, pause):
    return f'for i in $(seq 1 {lines}); do echo "line $i"; sleep {pause}; done'


# ---------------------------------------------------------------- the start of the service

def pid_of(muster):
    return int((muster.data / "musterd.pid").read_text())


def test_up_just_after_a_kill_starts_a_new_one(own_muster):
    for _ in range(5):
        old = pid_of(own_muster)
        os.kill(old, signal.SIGKILL)
        assert own_muster.good("up", "--detach").startswith("Serving ")
        assert pid_of(own_muster) != old
        own_muster.good("ls")
    assert "Already serving" in own_muster.good("up", "--detach")


def test_up_of_a_running_service_refuses_to_be_another(own_muster):
    nodes = len(json.loads(own_muster.good("--output", "json", "nodes"))["nodes"])
    again = own_muster("up", "--detach", "--nodes", str(nodes), "--listen", "127.0.0.1:0")
    assert again.returncode == 0 and again.stderr == "" and "Already serving" in again.stdout
    wanted = f"--listen 127.0.0.1:1 --nodes {nodes + 2}"
    other = own_muster("up", "--detach", *wanted.split())
    assert other.returncode == 4 and other.stdout == ""
    assert f" with {nodes} nodes, which {wanted} would change; nothing was changed. " in other.stderr
    restart = re.search(r"Restart it: (.*)", other.stderr)[1]
    assert restart.endswith(f"up --detach {wanted}")
    done = subprocess.run(restart.replace(" --listen 127.0.0.1:1", ""), shell=True, capture_output=True, text=True,
                          timeout=60, env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    assert len(json.loads(own_muster.good("--output", "json", "nodes"))["nodes"]) == nodes + 2


def test_up_says_what_jobs_can_do_without_jargon(own_muster):
    own_muster.good("down")
    said = own_muster.good("up", "--detach")
    assert re.search(r"^Safety    Jobs run as ", said, re.M), said
    assert not re.search("namespace|cgroup|capabilit", said), said
    assert f'eval "$({BIN}/muster --data {own_muster.data} env)"' in said, "it is not in PATH"
    assert f"In detail: muster --data {own_muster.data} doctor" in said


@pytest.mark.parametrize("script, said", [("kill -KILL $$", "musterd was killed by signal 9 (Killed) while it started"),
                                          ("exit 3", "musterd ended with exit code 3 while it started"),
                                          ("echo musterd: no luck >&2; exit 1", "muster: no luck")])
def test_a_failed_start_is_never_without_words(tmp_path, script, said):
    programs = tmp_path / "bin"
    programs.mkdir()
    shutil.copy2(BIN / "muster", programs)
    (programs / "musterd").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "musterd").chmod(0o755)
    for disk_is_full in (False, True):
        if disk_is_full:
            (tmp_path / "data/musterd.start").unlink()
            (tmp_path / "data/musterd.start").symlink_to("/dev/full")
        up = subprocess.run([programs / "muster", "--data", tmp_path / "data", "up", "--detach"], capture_output=True,
                            text=True, timeout=60)
        assert up.returncode == 1 and said in up.stderr, up.stderr


def test_a_folder_of_something_else_is_not_taken(tmp_path):
    (tmp_path / "keys").mkdir()
    for command in (("up", "--detach"), ("doctor",)):
        done = Muster(tmp_path)(*command)
        assert done.returncode != 0 and "not empty: it has keys" in done.stderr + done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_lost_state_is_not_made_anew(own_muster):
    own_muster.good("down")
    for part in ("keys/master", "keys/root.json", "state/state.db", "objects/metadata.sqlite"):
        (own_muster.data / part).rename(own_muster.data / "elsewhere")
        up = own_muster("up", "--detach")
        assert up.returncode == 1 and f"has lost {part}" in up.stderr, up.stderr
        (own_muster.data / "elsewhere").rename(own_muster.data / part)
    own_muster.good("up", "--detach")
    own_muster.good("ls", "s3://e2e")


def test_a_closed_terminal_ends_it_in_order(own):
    own.kill()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    own.start()
    signal.signal(signal.SIGHUP, before)
    for meaningless in (signal.SIGUSR1, signal.SIGUSR2):
        own.process.send_signal(meaningless)
    own.process.send_signal(signal.SIGHUP)
    assert own.process.wait(30) == 0
    assert "stopping on SIGHUP" in (own.data / "musterd.log").read_text()


# ---------------------------------------------------------------- a restart of the service

class Reader:
    """Collects what a process prints, line by line."""

    def __init__(self, process):
        self.process, self.out, self.err = process, [], []
        self.threads = [threading.Thread(target=self.read, args=pair, daemon=True)
                        for pair in ((process.stdout, self.out), (process.stderr, self.err))]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def read(stream, into):
        for line in stream:
            into.append(line.rstrip("\n"))

    def end(self):
        code = self.process.wait(60)
        for thread in self.threads:
            thread.join(10)
        return code

    def said(self, words):
        return sum(words in line for line in self.err)


def test_what_watches_goes_on_over_a_restart(away, tmp_path):
    own, muster = away
    name = unique("restart")
    expected = [f"line {i}" for i in range(1, 161)]
    file = write_job(tmp_path / "job.toml", counting(160, 0.05), TrainingJobName=name)
    watch = Reader(muster.start("train", file, "--watch", "--logs"))
    wait_for(lambda: any(line.strip() == "line 1" for line in watch.out))
    follow = Reader(muster.start("logs", name, "-f"))
    wait = Reader(muster.start("wait", name))
    for times in (1, 2):
        seen = len(follow.out)
        wait_for(lambda: len(follow.out) > seen + 5, what="more of the log")
        own.kill()
        wait_for(lambda: all(one.said("waiting at most") == times for one in (watch, follow, wait)))
        own.start()
        wait_for(lambda: all(one.said("is back") == times for one in (watch, follow, wait)))
    assert [one.end() for one in (watch, follow, wait)] == [0, 0, 0]
    assert [line for line in follow.out if line.startswith("line ")] == expected
    assert [line.strip() for line in watch.out if line.strip().startswith("line ")] == expected
    assert "Completed   Succeeded" in watch.out
    assert "ended Completed" in wait.out[-1]


@pytest.mark.parametrize("command, kind", [("train", "Training"), ("process", "Processing")])
def test_an_interrupted_watch_says_that_the_job_goes_on(muster, tmp_path, command, kind):
    name = unique("watched")
    file = write_job(tmp_path / "job.toml", "echo begun; sleep 300", kind, **{f"{kind}JobName": name})
    process = subprocess.Popen([BIN / "muster", "--data", muster.data, command, file, "--watch", "--logs"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    watch = Reader(process)
    wait_for(lambda: any(line.strip() == "begun" for line in watch.out))
    process.send_signal(signal.SIGINT)
    assert watch.end() == -signal.SIGINT
    prefix = f"muster --data {muster.data}"
    assert watch.err == [f"muster: the job goes on: {prefix} logs {name} -f; stop it with: {prefix} stop {name}"]
    assert muster.job(name)[f"{kind}JobStatus"] == "InProgress"
    muster.good("stop", name)


def test_the_example_of_a_script_of_ones_own(muster, tmp_path):
    out = muster.good("train", ROOT / "examples/host.toml", "--watch", "--logs")
    name = re.search(r"^Submitted +(\S+)", out, re.M)[1]
    log = muster.good("logs", name)
    assert "rank 0 of 2 on algo-1" in log and "rank 1 of 2 on algo-2" in log
    muster.good("cp", muster.job(name)["ModelArtifacts"]["S3ModelArtifacts"], tmp_path / "model.tar.gz")
    with tarfile.open(tmp_path / "model.tar.gz") as model:
        assert model.extractfile("model.txt").read() == b"trained for 5 steps\n"


def test_a_taken_name_is_refused_before_the_upload(muster, tmp_path):
    name = submit(muster, tmp_path, "true")
    folder = tmp_path / "input"
    folder.mkdir()
    (folder / "a").write_text("a")
    file = write_job(tmp_path / "again.toml", "true", TrainingJobName=name)
    file.write_text('InputDataConfig = [{ChannelName = "code", DataSource.S3DataSource.S3Uri = "input"}]\n' + file.read_text())
    again = muster("train", file)
    assert again.returncode == 4 and again.stdout == ""
    assert again.stderr == f"muster: training job {name} exists already: choose another name\n"


# ---------------------------------------------------------------- exit codes

def test_wait_tells_how_the_job_ended(muster, tmp_path):
    good, bad, long = (submit(muster, tmp_path, script) for script in ("true", "exit 3", "sleep 300"))
    assert muster("wait", good).returncode == 0
    failed = muster("wait", bad)
    assert failed.returncode == 10 and "exit code 3" in failed.stdout
    late = muster("wait", long, "--timeout", "1")
    assert late.returncode == 12 and f" stop {long}" in late.stderr
    muster.good("stop", long)
    assert muster("wait", long).returncode == 11
    assert muster("stop", long).returncode == 4, "an ended job cannot be stopped"


def test_mistakes_of_the_caller_are_2_and_the_rest_is_told_apart(muster, tmp_path):
    (tmp_path / "bad.toml").write_text("x = [")
    nowhere = write_job(tmp_path / "nowhere.toml", "true")
    nowhere.write_text('InputDataConfig = [{ChannelName = "a", DataSource.S3DataSource.S3Uri = "no/such"}]\n'
                       + nowhere.read_text())
    for arguments in (("train", tmp_path / "none.toml"), ("train", tmp_path / "bad.toml"), ("train", nowhere),
                      ("train",), ("cp", tmp_path / "none", "s3://e2e/x"), ("cp", "a", "b"), ("ls", "e2e"),
                      ("cp", tmp_path, "s3://e2e/x"), ("rm", "s3://e2e"), ("rb", "s3://e2e/key"), ("bogus",)):
        done = muster(*arguments)
        assert done.returncode == 2 and done.stderr, arguments
    assert "did you mean jobs?" in muster("jobz").stderr
    alone = subprocess.run([BIN / "muster"], capture_output=True, text=True, timeout=60)
    assert alone.returncode == 2 and "a command is missing; `muster --help` lists them" in alone.stderr
    for arguments in (("job", "nosuch"), ("logs", "nosuch"), ("wait", "nosuch"), ("cp", "s3://e2e/nosuch", "-"),
                      ("ls", "s3://nosuchbucket"), ("rb", "s3://nosuchbucket")):
        assert muster(*arguments).returncode == 3, arguments
    name = submit(muster, tmp_path, "true")
    again = muster("train", tmp_path / f"{name}.toml")
    assert again.returncode == 4 and "exists already" in again.stderr


def test_no_service_and_no_answer(tmp_path):
    muster = Muster(tmp_path / "data")
    assert muster("jobs").returncode == 3
    muster.good("up", "--detach", "--listen", "127.0.0.1:0")
    muster.good("down")
    done = muster("jobs")
    assert done.returncode == 5 and f"muster --data {muster.data} up --detach" in done.stderr


# ---------------------------------------------------------------- objects and requests

def test_a_bucket_goes_only_by_rb(muster, tmp_path):
    name = "s3://" + unique("rb")
    muster.good("mb", name)
    assert f" rb {name}" in muster("rm", name).stderr
    muster.good("ls", name)
    (tmp_path / "file").write_text("x")
    muster.good("cp", tmp_path / "file", name + "/a/b")
    full = muster("rb", name)
    assert full.returncode == 4 and "--force" in full.stderr
    muster.good("rm", "-r", name)
    muster.good("cp", tmp_path / "file", name + "/a/b")
    assert "1 object" in muster.good("rb", "--force", name)
    assert muster("ls", name).returncode == 3


def test_an_unknown_member_is_refused(muster, tmp_path):
    done = muster("process", write_job(tmp_path / "a.toml", "true", "Processing", TrainingJobName="x"))
    assert done.returncode == 2 and "did you mean ProcessingJobName?" in done.stderr


# ---------------------------------------------------------------- prune

def names_of(muster):
    jobs = json.loads(muster.good("--output", "json", "jobs"))["Jobs"]
    return {job.get("TrainingJobName") or job.get("ProcessingJobName") for job in jobs}


def keys_below(muster, uri):
    entries = json.loads(muster.good("--output", "json", "ls", "-r", uri))["entries"]
    return {entry["name"].rsplit("/", 1)[1] for entry in entries}


def test_prune_forgets_ended_jobs_and_with_objects_what_they_left(own_muster, tmp_path):
    muster, bucket = own_muster, "s3://sagemaker-us-east-1-000000000000"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "words").write_text("once upon a time")

    def finished(name):
        file = write_job(tmp_path / f"{name}.toml", "cp -r /opt/ml/input/data/text /opt/ml/model", TrainingJobName=name)
        file.write_text('InputDataConfig = [{ChannelName = "text", DataSource.S3DataSource.S3Uri = "text"}]\n'
                        + file.read_text())
        muster.good("train", file)
        assert muster("wait", name).returncode == 0, muster.good("logs", name)

    finished("first")
    everything = {"words", "model.tar.gz", "output.tar.gz"}
    assert keys_below(muster, bucket) == everything
    assert muster("prune", "--older-than", "7").returncode == 2
    assert "Forgot 0 jobs" in muster.good("prune", "--objects", "--older-than", "1h")
    assert names_of(muster) == {"first"} and keys_below(muster, bucket) == everything
    running = submit(muster, tmp_path, "sleep 600")

    assert "Forgot 1 job that ended more than 0s ago" in muster.good("prune", "--older-than", "0s")
    assert names_of(muster) == {running} and keys_below(muster, bucket) == everything
    assert muster("job", "first").returncode == 3

    finished("first")  # the name is free again
    finished("second")
    muster.good("cp", tmp_path / "text" / "words", bucket + "/mine/words")
    pruned = json.loads(muster.good("--output", "json", "prune", "--objects", "--older-than", "0s"))
    assert {job["name"] for job in pruned["pruned"]} == {"first", "second"}
    assert pruned["objects_removed"] == 6 and pruned["stayed"] == []
    assert names_of(muster) == {running}
    assert keys_below(muster, bucket + "/mine/") == keys_below(muster, bucket) == {"words"}
    logs = muster.data / "logs"
    wait_for(lambda: not [path for path in logs.rglob("*") if "first" in path.name or "second" in path.name],
             what="the removal of the logs")


# ---------------------------------------------------------------- down

def test_down_says_what_runs_and_each_way_is_followed_by_up(own_muster, tmp_path):
    muster = own_muster
    name = submit(muster, tmp_path, "echo up; " + counting(600, 0.1))
    wait_for(lambda: "up" in muster.good("logs", name))
    refused = muster("down")
    assert refused.returncode == 4
    assert name in refused.stderr
    assert all(flag in refused.stderr for flag in ("--stop-jobs", "--leave-jobs", "--now"))

    muster.good("down", "--leave-jobs")
    muster.good("up", "--detach")
    assert muster.status(name) == "InProgress"
    seen = muster.good("logs", name).count("line ")
    wait_for(lambda: muster.good("logs", name).count("line ") > seen, what="more of the log")

    assert f"Stopping  {name}" in muster.good("down", "--stop-jobs")
    muster.good("up", "--detach")
    assert muster.status(name) == "Stopped"
    assert "Stopped by request" in muster.good("job", name)


@pytest.mark.parametrize("kind", ["Training", "Processing"])
def test_what_down_now_kills_was_stopped_not_lost(own_muster, tmp_path, kind):
    muster, name = own_muster, unique("killed")
    command = {"Training": "train", "Processing": "process"}[kind]
    muster.good(command, write_job(tmp_path / "a.toml", "echo up; sleep 300", kind, **{kind + "JobName": name}))
    wait_for(lambda: "up" in muster.good("logs", name))
    assert "killed 1 runner" in muster.good("down", "--now")
    muster.good("up", "--detach")
    wait_for(lambda: muster.job(name)[kind + "JobStatus"] == "Stopped", what="its end")
    shown = muster.good("job", name)
    assert "Stopped with the service by `muster down --now`" in shown
    assert "InternalServerError" not in shown and "lost" not in shown
    assert "up" in muster.good("logs", name)
    wait_for(lambda: "busy" not in muster.good("nodes"), what="release of the node")


# ---------------------------------------------------------------- starting

def test_a_taken_port_is_named(muster, shared, tmp_path):
    port = shared.endpoint.rsplit(":", 1)[1]
    done = Muster(tmp_path / "data")("up", "--detach", "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert port in done.stderr and "musterd" in done.stderr and "--listen" in done.stderr


def test_another_service_at_the_kept_address_is_not_taken_for_this_one(tmp_path):
    mine, other = Muster(tmp_path / "mine"), Muster(tmp_path / "other")
    mine.good("up", "--detach", "--listen", "127.0.0.1:0")
    address = mine.good("env").split("AWS_ENDPOINT_URL=")[1].split()[0].strip("'\"").removeprefix("http://")
    mine.good("down")
    other.good("up", "--detach", "--listen", address)
    refused = mine("up", "--detach")
    other.good("down")
    assert refused.returncode == 1
    assert f"cannot listen on {address}" in refused.stderr and "musterd" in refused.stderr


def test_a_wrong_address_is_a_wrong_command_line(tmp_path):
    done = Muster(tmp_path / "data")("up", "--detach", "--listen", "127.0.0.1:99999")
    assert done.returncode == 2
    assert "127.0.0.1:99999" in done.stderr and "from 0 to 65535" in done.stderr


@pytest.fixture
def ipv6_loopback():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback, [::1]: {error.strerror}")


@pytest.mark.usefixtures("ipv6_loopback")
def test_another_address_is_taken_once_no_job_dials_the_old_one(own_muster, tmp_path):
    name = submit(own_muster, tmp_path, "sleep 600")
    wait_for(lambda: own_muster.job(name)["SecondaryStatus"] == "Training", what="the command")
    own_muster.good("down", "--leave-jobs")
    refused = own_muster("up", "--detach", "--listen", "[::1]:0")
    assert refused.returncode == 1 and "1 node runs a job that dials http://127.0.0.1:" in refused.stderr
    own_muster.good("up", "--detach")
    own_muster.good("down", "--stop-jobs")
    own_muster.good("up", "--detach", "--listen", "[::1]:0")
    assert "http://[::1]:" in own_muster.good("env")
    assert own_muster.status(name) == "Stopped"
    again = submit(own_muster, tmp_path, "echo over $AWS_ENDPOINT_URL")
    wait_for(lambda: own_muster.status(again) == "Completed", what="a job whose runner dials IPv6")
    assert "over http://[::1]:" in own_muster.good("logs", again)


def test_a_data_directory_that_cannot_be_written(tmp_path):
    """As a normal user: root may write anywhere."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    command = [BIN / "muster", "--data", locked / "data", "up", "--detach"]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("setpriv is missing")
        nobody = pwd.getpwnam("nobody")
        command = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", *command]
        for parent in [locked, *locked.parents][:3]:
            os.chmod(parent, 0o755)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Permission denied" in done.stderr and "--data DIR or MUSTER_DATA" in done.stderr


# ---------------------------------------------------------------- help

def commands(muster):
    text = muster.good("--help")
    return re.findall(r"^  (\w+) ", text[text.index("Subcommands:"):text.index("Exit codes:")], re.M)


def test_every_command_has_help_with_an_example_and_a_line_in_the_guide(muster):
    guide = (ROOT / "docs/guides/command-line.md").read_text()
    names = commands(muster)
    assert len(names) >= 19
    for name in names:
        text = muster.good(name, "--help")
        assert re.search(rf"Example:\n  .*muster {name}\b", text), name
        assert re.search(rf"`(muster )?{name}\b", guide), name


def test_exit_codes_of_help_and_guide_agree(muster):
    guide = (ROOT / "docs/guides/command-line.md").read_text()
    listed = re.findall(r"^\| (\d+) \|", guide, re.M)
    text = muster.good("--help")
    assert sorted(map(int, re.findall(r"(?:^| )(\d+)  \w", text[text.index("Exit codes:"):]))) == list(map(int, listed))


# ---------------------------------------------------------------- the configuration

def test_region_of_the_configuration_is_that_of_env_bucket_and_jobs(tmp_path):
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "muster.toml").write_text('region = "eu-central-1"\n')
    muster = Muster(data)
    muster.good("up", "--detach", "--listen", "127.0.0.1:0")
    try:
        assert "export AWS_DEFAULT_REGION='eu-central-1'\n" in muster.good("env")
        name = submit(muster, tmp_path, "true")
        assert ":eu-central-1:" in muster.job(name)["TrainingJobArn"]
        assert "sagemaker-eu-central-1-000000000000" in muster.good("ls")
        again = submit(muster, tmp_path, "true")  # the bucket is there already
        for job in (name, again):
            assert muster("wait", job).returncode == 0
    finally:
        muster("down", "--now")


def test_doctor_reads_the_configuration(tmp_path):
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    muster = Muster(data)

    def checks():
        done = muster("--output", "json", "doctor")
        return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    (data / "muster.toml").write_text("[local]\nnodes = 3\n")
    found = checks()[1]
    assert found["nodes"]["message"].startswith("3 with ")
    assert found.get("network", {"state": "note"})["state"] == "note"  # shared with the machine: no merit, no fault
    guide = (ROOT / "docs/guides/command-line.md").read_text()
    (data / "muster.toml").write_text(re.search(r"^## Configuration.*?```toml\n(.*?)```", guide, re.M | re.S)[1])
    code, found = checks()
    assert code == 0 and found["nodes"]["message"].startswith("2 with "), "as the guide prints it"
    (data / "muster.toml").write_text('[local]\nuser = "no-such-user"\n')
    code, found = checks()
    assert code == 1 and "[local] user is 'no-such-user'" in found["local engine"]["message"]
    (data / "muster.toml").write_text("[local]\nnodes = 0\n")
    code, found = checks()
    assert code == 1 and "line 2: nodes must be a number from 1 to 250" in found["configuration"]["message"]
