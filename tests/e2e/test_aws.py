"""Jobs and their logs through both aws command lines, and what `muster env` sets up for them."""
import json
import re
import subprocess

from conftest import BIN, aws, training_request, unique, wait_job, wait_status

# Each call of aws costs a second of CPU and its waiter looks once a minute: what is not tried here is boto3's.


def answer(which, service, *arguments):
    return json.loads(aws(which, service, *arguments, "--output", "json").stdout)


def create(which, service, name, script, **more):
    request = training_request(name, script, **more)
    made = answer(which, service, "sagemaker", "create-training-job", "--cli-input-json", json.dumps(request))
    assert made["TrainingJobArn"].endswith(f":training-job/{name}")


def wait(which, service, name):
    aws(which, service, "sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", name)


def test_a_job_from_create_to_its_logs(which, shared, sagemaker, bucket):
    name = unique("aws")
    create(which, shared, name, 'for i in 1 2 3; do echo "line $i of $RANK"; done', nodes=2)
    wait_job(sagemaker, name)
    wait(which, shared, name)
    job = answer(which, shared, "sagemaker", "describe-training-job", "--training-job-name", name)
    assert job["TrainingJobStatus"] == "Completed" and job["ResourceConfig"]["InstanceCount"] == 2

    group = ("--log-group-name", "/aws/sagemaker/TrainingJobs")
    streams = answer(which, shared, "logs", "describe-log-streams", *group, "--log-stream-name-prefix", name + "/")
    names = [stream["logStreamName"] for stream in streams["logStreams"]]
    assert [stream.split("/")[1].rsplit("-", 1)[0] for stream in names] == ["algo-1", "algo-2"]
    for rank, stream in enumerate(names):
        page = answer(which, shared, "logs", "get-log-events", *group, "--log-stream-name", stream, "--start-from-head")
        assert [e["message"] for e in page["events"]][-3:] == [f"line {i} of {rank}" for i in (1, 2, 3)]
    found = answer(which, shared, "logs", "filter-log-events", *group, "--log-stream-name-prefix", name + "/",
                   "--filter-pattern", '"line 2"')
    assert sorted(e["message"] for e in found["events"]) == ["line 2 of 0", "line 2 of 1"]


def test_stop(which, shared, sagemaker, bucket):
    name = unique("aws")
    create(which, shared, name, 'trap "exit 0" TERM; sleep 300 & wait')
    wait_status(sagemaker, name, "Training")
    stop = ("sagemaker", "stop-training-job", "--training-job-name", name)
    aws(which, shared, *stop)
    wait_job(sagemaker, name)
    wait(which, shared, name)
    refused = aws(which, shared, *stop, check=False)
    assert refused.returncode in (254, 255) and "has ended" in refused.stderr


def test_lists_filter_and_page(which, shared, sagemaker, bucket):
    prefix = unique("listed")
    names = [f"{prefix}-{i}" for i in range(3)]
    for name in (*names, unique("other")):
        sagemaker.create_training_job(**training_request(name, "true"))
        wait_job(sagemaker, name)

    def listed(*arguments):
        page = answer(which, shared, "sagemaker", "list-training-jobs", "--name-contains", prefix, "--sort-by", "Name",
                      "--sort-order", "Ascending", *arguments)
        return [job["TrainingJobName"] for job in page["TrainingJobSummaries"]], page.get("NextToken")
    assert listed("--status-equals", "Completed", "--page-size", "2") == (names, None)
    assert listed("--status-equals", "Stopped") == ([], None)
    first, token = listed("--max-items", "2")
    assert first == names[:2] and token
    assert listed("--max-items", "2", "--starting-token", token) == (names[2:], None)


def test_after_muster_env_aws_needs_no_option(which, shared, sagemaker, bucket):
    name = unique("aws")
    sagemaker.create_training_job(**training_request(name, "true"))
    wait_job(sagemaker, name)

    def typed(command):
        """In a shell that finds only this aws and muster, with what a user may have set before."""
        before = {"HOME": str(shared.data), "PATH": f"{which.parent}:/usr/bin:/bin", "MUSTER_DATA": str(shared.data),
                  "AWS_PROFILE": "mine", "AWS_SESSION_TOKEN": "old", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
        done = subprocess.run(["bash", "-c", f'eval "$({BIN}/muster env)"; {command}'], env=before, capture_output=True,
                              text=True, timeout=120)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout
    out = typed("set -e; aws sagemaker list-training-jobs; "
                "aws s3 ls; aws logs describe-log-groups; muster jobs | sed s/^/muster:/")
    assert f'"TrainingJobName": "{name}"' in out
    assert re.search(rf"^\S+ \S+ {bucket}$", out, re.M)
    assert '"logGroupName": "/aws/sagemaker/TrainingJobs"' in out
    assert re.search(rf"^muster:{name} ", out, re.M)
