"""A musterd of its own for the end-to-end tests, and the clients that talk to it."""
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid

import boto3
import botocore.config
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = pathlib.Path(os.environ.get("MUSTER_BIN", ROOT / "build/release/bin"))
ROLE = "arn:aws:iam::000000000000:role/Train"
TERMINAL = {"Completed", "Failed", "Stopped"}


class Service:
    """One musterd on a data directory; may be killed and started again."""

    def __init__(self, data, nodes=2):
        self.data = pathlib.Path(data)
        self.nodes = nodes
        self.programs = BIN
        self.process = None

    def start(self, timeout=30):
        log = open(self.data.parent / "musterd.out", "ab")
        self.process = subprocess.Popen(
            [self.programs / "musterd", "--data", self.data, "--nodes", str(self.nodes)], stdout=log, stderr=log)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "musterd ended: " + (self.data.parent / "musterd.out").read_text()
            try:
                with urllib.request.urlopen(self.endpoint + "/healthz", timeout=2) as answer:
                    if answer.status == 200 and (self.data / "keys/root.json").exists():
                        return self
            except (OSError, urllib.error.URLError, FileNotFoundError):
                pass
            time.sleep(0.02)
        raise AssertionError("musterd did not answer within %d s" % timeout)

    @property
    def endpoint(self):
        return (self.data / "endpoint").read_text().strip()

    @property
    def keys(self):
        return json.loads((self.data / "keys/root.json").read_text())

    def environment(self):
        keys = self.keys
        kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        return kept | {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": keys["access_key"],
                       "AWS_SECRET_ACCESS_KEY": keys["secret_key"], "AWS_DEFAULT_REGION": "us-east-1",
                       "AWS_EC2_METADATA_DISABLED": "true", "MUSTER_DATA": str(self.data)}

    def client(self, name, **config):
        keys = self.keys
        settings = {"retries": {"max_attempts": 2}, "read_timeout": 60} | config
        return boto3.client(name, endpoint_url=self.endpoint, region_name="us-east-1",
                            aws_access_key_id=keys["access_key"], aws_secret_access_key=keys["secret_key"],
                            config=botocore.config.Config(**settings))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    @contextlib.contextmanager
    def held_in_starting(self):
        """Starts the service again; within the block its runners wait before they make their node, as on a very slow
        machine. Gives the file to which each that waits writes a line. Probes, by which the service learns at its start
        what the machine can isolate, do not wait."""
        self.kill()
        self.programs = self.data.parent / "bin"
        self.programs.mkdir()
        shutil.copy2(BIN / "musterd", self.programs)
        gate, waiting = self.programs / "gate", self.programs / "waiting"
        waiting.touch()
        runner = self.programs / "muster-runner"
        runner.write_text(f"""#!/bin/sh
case $2 in */.probe-*) ;; *) echo "$2" >>{waiting}; flock --shared {gate} true ;; esac
exec {BIN}/muster-runner "$@"
""")
        runner.chmod(0o755)
        self.data.parent.chmod(0o755)  # whom jobs run as must reach the programs
        with open(gate, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.start()
            yield waiting

    def down(self):
        subprocess.run([BIN / "muster", "down", "--now", "--data", self.data], check=False, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.process.poll() is None:
            self.kill()


@contextlib.contextmanager
def running_service(nodes):
    folder = tempfile.mkdtemp(prefix="muster-e2e-")
    service = Service(pathlib.Path(folder) / "data", nodes)
    service.data.mkdir()
    service.start()
    try:
        yield service
    finally:
        service.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared():
    """The service that most tests share."""
    with running_service(nodes=3) as service:
        yield service


@pytest.fixture
def own():
    """A service that a test may kill."""
    with running_service(nodes=2) as service:
        yield service


@pytest.fixture(scope="module")
def token_shards(tmp_path_factory):
    """A folder of token shards of a small text with something to learn, vocabulary 300."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "text").mkdir()
    words = "the cat and dog ran to a house river slowly of light stone sea wind over".split()
    (folder / "text/a.txt").write_text(" ".join(words[i * i % 16] for i in range(20_000)))
    for arguments in (["train-tokenizer", "--input", folder / "text", "--output", folder / "tok", "--vocab-size", "300"],
                      ["tokenize", "--input", folder / "text", "--tokenizer", folder / "tok/tokenizer.model",
                       "--output", folder / "train"]):
        subprocess.run([BIN / "muster-data", *arguments], check=True, stdout=subprocess.DEVNULL)
    return folder / "train"


@pytest.fixture(scope="session")
def sagemaker(shared):
    return shared.client("sagemaker")


@pytest.fixture(scope="session")
def s3(shared):
    return shared.client("s3")


@pytest.fixture(scope="session")
def logs(shared):
    return shared.client("logs")


@pytest.fixture(scope="session")
def bucket(s3):
    s3.create_bucket(Bucket="e2e")
    return "e2e"


@pytest.fixture(autouse=True)
def no_job_left_behind(request):
    """A failed test must not hold the nodes that the next one needs."""
    yield
    if "shared" in request.fixturenames or "sagemaker" in request.fixturenames:
        client = request.getfixturevalue("shared").client("sagemaker")
        for job in client.list_training_jobs(StatusEquals="InProgress", MaxResults=100)["TrainingJobSummaries"]:
            try:
                client.stop_training_job(TrainingJobName=job["TrainingJobName"])
            except client.exceptions.ClientError as error:
                if " has ended " not in str(error):  # since it was listed
                    raise


@pytest.fixture(params=["new", "debian"])
def which(request):
    """A program aws: the one of PyPI, or Debian's, which does not know AWS_ENDPOINT_URL."""
    program = pathlib.Path(sys.executable).parent / "aws" if request.param == "new" else pathlib.Path("/usr/bin/aws")
    if not program.exists():
        pytest.skip(f"there is no {program}")
    return program


def aws(which, service, *arguments, check=True):
    done = subprocess.run([which, "--endpoint-url", service.endpoint, *arguments], env=service.environment(),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or not check, done.stderr
    return done


def unique(prefix):
    return prefix + "-" + uuid.uuid4().hex[:8]


def training_request(name, script, nodes=1, bucket="e2e", **more):
    """A job that runs a shell script (up to 512 characters) on the machine's own root file system."""
    more["Environment"] = more.get("Environment", {}) | {"SCRIPT": script}
    return {
        "TrainingJobName": name, "RoleArn": ROLE,
        "AlgorithmSpecification": {"TrainingImage": "muster/host", "TrainingInputMode": "File",
                                   "ContainerEntrypoint": ["/bin/bash", "-c", 'eval "$SCRIPT"']},
        "OutputDataConfig": {"S3OutputPath": f"s3://{bucket}/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": nodes, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    } | more


def wait_for(check, timeout=60, what="it"):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = check()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {timeout} s")


def wait_job(sagemaker, name, timeout=90):
    """Describes the job until it has ended."""
    def ended():
        job = sagemaker.describe_training_job(TrainingJobName=name)
        return job if job["TrainingJobStatus"] in TERMINAL else None
    return wait_for(ended, timeout, f"the end of {name}")


def wait_status(sagemaker, name, secondary, timeout=60):
    def reached():
        job = sagemaker.describe_training_job(TrainingJobName=name)
        assert job["TrainingJobStatus"] not in TERMINAL or job["SecondaryStatus"] == secondary, job
        return job if job["SecondaryStatus"] == secondary else None
    return wait_for(reached, timeout, f"{secondary} of {name}")


def statuses(job):
    return [t["Status"] for t in job["SecondaryStatusTransitions"]]


def log_lines(logs, name, group="/aws/sagemaker/TrainingJobs"):
    """{host: [line, ...]} of a job, read to the end as the SDKs do."""
    out = {}
    for stream in logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=name + "/")["logStreams"]:
        host = stream["logStreamName"].split("/")[1].rsplit("-", 1)[0]
        lines, token = out.setdefault(host, []), {}
        while True:
            page = logs.get_log_events(logGroupName=group, logStreamName=stream["logStreamName"],
                                       startFromHead=True, **token)
            lines += [event["message"] for event in page["events"]]
            if not page["events"]:
                break
            token = {"nextToken": page["nextForwardToken"]}
    return out
