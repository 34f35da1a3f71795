"""Nothing acknowledged is lost and running jobs go on, whatever is killed."""
import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import (BIN, Service, log_lines, statuses, training_request, unique, wait_for, wait_job, wait_status)


def counting(lines, pause):
    return f'for i in $(seq 1 {lines}); do echo "line $i"; sleep {pause}; done'


@pytest.fixture
def clients(own):
    own.client("s3").create_bucket(Bucket="e2e")
    return own, own.client("sagemaker"), own.client("logs"), own.client("s3")


@pytest.mark.parametrize("secondary", ["Starting", "Pending", "Downloading", "Training", "Stopping", "Uploading"])
def test_musterd_killed_in_each_state(clients, secondary):
    own, sagemaker, logs, s3 = clients
    endpoint, name, blocker, more = own.endpoint, unique("killed"), None, {}
    script = counting(40, 0.05)
    if secondary == "Pending":
        blocker = unique("holds-all")
        sagemaker.create_training_job(**training_request(blocker, counting(60, 0.05), nodes=2))
        wait_status(sagemaker, blocker, "Training")
    if secondary == "Downloading":
        s3.put_object(Bucket="e2e", Key="big/file", Body=b"\0" * (128 << 20))
        source = {"S3DataType": "S3Prefix", "S3Uri": "s3://e2e/big/"}
        more["InputDataConfig"] = [{"ChannelName": f"c{i}", "DataSource": {"S3DataSource": source}} for i in range(4)]
    if secondary == "Stopping":
        script = 'trap "sleep 1; echo last; exit 0" TERM; echo up; sleep 300 & wait'
    if secondary == "Uploading":
        script += "; head -c 300M /dev/urandom > /opt/ml/model/weights"
    with own.held_in_starting() if secondary == "Starting" else contextlib.nullcontext() as waiting:
        nodes = 1 if secondary == "Uploading" else 2
        sagemaker.create_training_job(**training_request(name, script, nodes=nodes, **more))
        if secondary == "Stopping":
            wait_status(sagemaker, name, "Training")
            wait_for(lambda: "up" in log_lines(logs, name).get("algo-1", []))
            sagemaker.stop_training_job(TrainingJobName=name)
        if secondary == "Starting":
            wait_for(lambda: len(waiting.read_text().splitlines()) == nodes, what="a start of both runners")
        wait_status(sagemaker, name, secondary)
        own.kill()
        time.sleep(1)
        own.start()
        assert own.endpoint == endpoint
    job = wait_job(sagemaker, name, timeout=120)
    assert job["TrainingJobStatus"] == ("Stopped" if secondary == "Stopping" else "Completed"), job
    lines = log_lines(logs, name)
    for host in lines:
        if secondary == "Stopping":
            assert lines[host][-1] == "last"
        else:
            assert [line for line in lines[host] if line.startswith("line ")] == [f"line {i}" for i in range(1, 41)]
    if secondary == "Uploading":
        assert s3.head_object(Bucket="e2e", Key=f"out/{name}/output/model.tar.gz")["ContentLength"] > 300 << 20
    if blocker:
        assert wait_job(sagemaker, blocker)["TrainingJobStatus"] == "Completed"


def test_acknowledged_jobs_survive_kills(clients):
    own, sagemaker, _, _ = clients
    accepted = []
    for _ in range(4):
        for _ in range(5):
            name = unique("kept")
            sagemaker.create_training_job(**training_request(name, "true"))
            accepted.append(name)
        own.kill()
        own.start()
    for name in accepted:
        assert wait_job(sagemaker, name, timeout=120)["TrainingJobStatus"] == "Completed"


def test_sigterm_leaves_jobs_running(clients):
    own, sagemaker, logs, _ = clients
    name = unique("goes-on")
    sagemaker.create_training_job(**training_request(name, counting(30, 0.1), nodes=2))
    wait_status(sagemaker, name, "Training")
    assert own.terminate() == 0
    own.start()
    assert wait_job(sagemaker, name)["TrainingJobStatus"] == "Completed"
    assert all(len([x for x in lines if x.startswith("line ")]) == 30 for lines in log_lines(logs, name).values())


def runner_pids(own):
    return {path.parent.name: int(path.read_text().split()[0]) for path in (own.data / "run").glob("*/pid")}


def test_runner_killed_fails_the_job_as_infrastructure(clients):
    own, sagemaker, logs, _ = clients
    name = unique("runner-killed")
    sagemaker.create_training_job(**training_request(name, "echo begun; sleep 300", nodes=2))
    wait_status(sagemaker, name, "Training")
    wait_for(lambda: all("begun" in lines for lines in log_lines(logs, name).values()) and log_lines(logs, name))
    for folder, pid in runner_pids(own).items():
        if "-r1-" in folder:
            os.kill(pid, signal.SIGKILL)
    job = wait_job(sagemaker, name, timeout=30)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("InternalServerError: ")
    wait_for(lambda: not runner_pids(own), what="release of the nodes")


def test_what_ships_a_spool_says_who_it_is(tmp_path):
    """So that `muster down --now` finds it, also when musterd died just after it started it."""
    (tmp_path / "pid").write_text("2147483632 1\n")
    drain = subprocess.Popen([BIN / "muster-runner", "drain", tmp_path], stderr=subprocess.DEVNULL)
    drain.wait(60)
    assert int((tmp_path / "pid").read_text().split()[0]) == drain.pid


def test_runner_killed_is_retried(clients):
    own, sagemaker, logs, _ = clients
    name = unique("retried")
    sagemaker.create_training_job(**training_request(
        name, "echo begun; sleep 3; echo done", nodes=2, RetryStrategy={"MaximumRetryAttempts": 1}))
    wait_status(sagemaker, name, "Training")
    os.kill(next(iter(runner_pids(own).values())), signal.SIGKILL)
    job = wait_job(sagemaker, name, timeout=60)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert statuses(job).count("Starting") == 2


def test_children_of_any_kind_die_with_their_job(clients):
    own, sagemaker, _, _ = clients
    marker = unique("escapee")
    name = unique("forks")
    script = f'( setsid bash -c "exec -a {marker} sleep 600" & ) ; sleep 2; exit 0'
    sagemaker.create_training_job(**training_request(name, script))

    def alive():
        return subprocess.run(["pgrep", "-f", marker], stdout=subprocess.DEVNULL).returncode == 0
    wait_for(alive, 30, "the child")
    assert wait_job(sagemaker, name)["TrainingJobStatus"] == "Completed"
    wait_for(lambda: not alive(), 10, "death of the child")


def test_hundred_megabytes_of_log_arrive_complete(clients):
    own, sagemaker, logs, _ = clients
    name = unique("chatty")
    count = 1_000_000
    script = f'seq -f "%.0f: {"x" * 92}" 1 {count}'
    sagemaker.create_training_job(**training_request(name, script))
    assert wait_job(sagemaker, name, timeout=180)["TrainingJobStatus"] == "Completed"
    stream = logs.describe_log_streams(logGroupName="/aws/sagemaker/TrainingJobs",
                                       logStreamNamePrefix=name + "/")["logStreams"][0]["logStreamName"]
    page = logs.get_log_events(logGroupName="/aws/sagemaker/TrainingJobs", logStreamName=stream, limit=10)
    last = page["events"][-1]["message"]
    assert last.startswith(f"{count}: x"), last[:40]
    seen, token = 0, {}
    while True:
        page = logs.get_log_events(logGroupName="/aws/sagemaker/TrainingJobs", logStreamName=stream,
                                   startFromHead=True, **token)
        if not page["events"]:
            break
        for event in page["events"]:
            if event["message"].endswith("x" * 92):
                seen += 1
                assert event["message"].startswith(f"{seen}: ")
        token = {"nextToken": page["nextForwardToken"]}
    assert seen == count


@pytest.mark.parametrize("place", ["header", "record"])
def test_a_damaged_log_goes_on_and_says_what_is_missing(clients, place):
    own, sagemaker, logs, _ = clients
    name = unique("damaged-log")
    sagemaker.create_training_job(**training_request(name, counting(40, 0.1), nodes=1))
    wait_for(lambda: "line 10" in log_lines(logs, name).get("algo-1", []))
    notices = [line for line in log_lines(logs, name)["algo-1"] if line.startswith("muster: ")]
    whole = notices + [f"line {i}" for i in range(1, 41)]
    own.kill()
    segment, = (own.data / "logs").glob(f"*/*{name}*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[3 if place == "header" else damaged.index(b"line 5")] ^= 1
    segment.write_bytes(damaged)
    own.start()
    assert wait_job(sagemaker, name, timeout=120)["TrainingJobStatus"] == "Completed"
    lines = log_lines(logs, name)["algo-1"]
    kept = 0 if place == "header" else whole.index("line 5")
    missing = re.fullmatch(r"muster: (\d+) lines are missing here: damage to the stored log has lost them", lines[kept])
    assert missing, lines
    assert lines[:kept] == whole[:kept]
    assert lines[kept + 1:] == whole[kept + int(missing[1]):]


def test_odd_bytes_and_long_lines(clients):
    own, sagemaker, logs, _ = clients
    name = unique("odd")
    script = r'printf "a\xffb\n"; printf "\n"; head -c 1000000 /dev/zero | tr "\0" y; printf "\nno newline at the end"'
    sagemaker.create_training_job(**training_request(name, script))
    assert wait_job(sagemaker, name)["TrainingJobStatus"] == "Completed"
    lines = log_lines(logs, name)["algo-1"]
    assert "a\ufffdb" in lines
    assert lines[-1] == "no newline at the end"
    assert sum(len(line) for line in lines if line.startswith("yyy")) == 1_000_000


def test_two_hundred_parallel_creates(clients):
    own, sagemaker, _, _ = clients
    names = [unique("parallel") for _ in range(200)]

    def create(name):
        return own.client("sagemaker").create_training_job(**training_request(name, "true"))
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert len(list(pool.map(create, names))) == 200
    for name in names:
        assert wait_job(sagemaker, name, timeout=180)["TrainingJobStatus"] == "Completed"


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "muster-test", disk]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small file system")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk):
    with contextlib.suppress(OSError), open(disk / "filler", "ab", buffering=0) as filler:
        while filler.write(bytes(4096)) == 4096:
            pass


def test_on_a_full_disk_musterd_starts_and_jobs_can_be_stopped(small_disk):
    service = Service(small_disk, nodes=1).start()
    try:
        service.client("s3").create_bucket(Bucket="e2e")
        name = unique("full")
        service.client("sagemaker").create_training_job(**training_request(name, "sleep 600"))
        wait_status(service.client("sagemaker"), name, "Training")
        fill(small_disk)
        service.kill()
        service.start()
        assert f"process {service.process.pid})" in muster(service, "up").stdout
        sagemaker = service.client("sagemaker")
        with pytest.raises(sagemaker.exceptions.ClientError, match="no new jobs until there is room"):
            sagemaker.create_training_job(**training_request(unique("no"), "true"))
        sagemaker.stop_training_job(TrainingJobName=name)
        assert wait_job(sagemaker, name)["TrainingJobStatus"] == "Stopped"
        (small_disk / "filler").unlink()
        again = unique("room")
        sagemaker.create_training_job(**training_request(again, "true"))
        assert wait_job(sagemaker, again)["TrainingJobStatus"] == "Completed"
        assert muster(service, "down").returncode == 0  # SQLite removes its log, and makes it anew at the start
        assert service.process.wait(timeout=30) == 0
        fill(small_disk)
        service.start()
        assert muster(service, "down").returncode == 0
        assert service.process.wait(timeout=30) == 0
    finally:
        service.down()


def muster(service, *arguments):
    return subprocess.run([BIN / "muster", "--data", service.data, *arguments], capture_output=True, text=True, timeout=60)


def test_a_second_musterd_is_refused(own):
    second = subprocess.run([BIN / "musterd", "--data", own.data], capture_output=True, text=True, timeout=20)
    assert second.returncode == 1
    assert "another musterd" in second.stderr and str(own.process.pid) in second.stderr


def test_bad_starts_say_what_to_do(own, tmp_path):
    def start(*arguments, code=1):
        done = subprocess.run([BIN / "musterd", *arguments], capture_output=True, text=True, timeout=20)
        assert done.returncode == code
        return done.stderr
    (tmp_path / "file").write_text("")
    assert "--data" in start("--data", tmp_path / "file" / "x")
    assert "--insecure" in start("--data", tmp_path / "a", "--listen", "0.0.0.0:0", code=2)
    port = own.endpoint.rsplit(":", 1)[1]
    taken = start("--data", tmp_path / "b", "--listen", f"127.0.0.1:{port}")
    assert port in taken and "musterd" in taken
    (tmp_path / "c").mkdir(mode=0o700)
    (tmp_path / "c" / "muster.toml").write_text("nodez = 3\n")
    assert "nodez is not a setting" in start("--data", tmp_path / "c", code=2)
