"""Training jobs through boto3: the life of a job, its lists, its logs, its failures."""
import concurrent.futures
import json
import tarfile
import io

import botocore.exceptions
import pytest

from conftest import ROLE, log_lines, statuses, training_request, unique, wait_for, wait_job, wait_status


def test_two_nodes_run_and_are_described(sagemaker, logs, bucket):
    name = unique("hello")
    arn = sagemaker.create_training_job(
        **training_request(name, 'echo "hello from $(hostname) rank $RANK of $WORLD_SIZE"', nodes=2))["TrainingJobArn"]
    assert arn == f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}"
    sagemaker.get_waiter("training_job_completed_or_stopped").wait(
        TrainingJobName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    job = sagemaker.describe_training_job(TrainingJobName=name)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert statuses(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    times = [t["StartTime"] for t in job["SecondaryStatusTransitions"]]
    assert times == sorted(times)
    assert "rehearsed on local nodes" in job["SecondaryStatusTransitions"][0]["StatusMessage"]
    lines = log_lines(logs, name)
    assert lines["algo-1"][-1] == "hello from algo-1 rank 0 of 2"
    assert lines["algo-2"][-1] == "hello from algo-2 rank 1 of 2"


def test_logs_of_all_nodes_are_searched_together(sagemaker, logs, bucket):
    name = unique("search")
    script = 'for i in $(seq 1 40); do echo "step $i of rank $RANK"; echo "noise $i"; done'
    sagemaker.create_training_job(**training_request(name, script, nodes=2))
    assert wait_job(sagemaker, name)["TrainingJobStatus"] == "Completed"
    pages = list(logs.get_paginator("filter_log_events").paginate(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=name + "/",
        filterPattern='step rank', PaginationConfig={"PageSize": 7}))
    events = [event for page in pages for event in page["events"]]
    assert len(pages) >= 80 // 7 and all(len(page["events"]) <= 7 for page in pages)
    for rank in range(2):
        mine = [e["message"] for e in events if f"/algo-{rank + 1}-" in e["logStreamName"]]
        assert mine == [f"step {i} of rank {rank}" for i in range(1, 41)]
    assert len(events) == 80 == len({e["eventId"] for e in events})
    times = [e["timestamp"] for e in events]
    assert times == sorted(times)


def test_outputs_of_all_nodes_are_merged(sagemaker, s3, bucket):
    name = unique("merge")
    script = 'echo "$RANK" > /opt/ml/model/part-$RANK; echo x > /opt/ml/output/data/result-$RANK'
    sagemaker.create_training_job(**training_request(name, script, nodes=2))
    job = wait_job(sagemaker, name)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{bucket}/out/{name}/output/model.tar.gz"
    for archive, files in (("model", {"part-0", "part-1"}), ("output", {"result-0", "result-1"})):
        body = s3.get_object(Bucket=bucket, Key=f"out/{name}/output/{archive}.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            assert {m.name.removeprefix("./") for m in tar.getmembers() if m.isfile()} == files
    keys = [o["Key"] for o in s3.list_objects_v2(Bucket=bucket, Prefix=f"out/{name}/")["Contents"]]
    assert sorted(k.rsplit("/", 1)[1] for k in keys) == ["model.tar.gz", "output.tar.gz"]


def test_channels_are_sharded_and_replicated(sagemaker, s3, logs, bucket):
    prefix = unique("data")
    for i in range(5):
        s3.put_object(Bucket=bucket, Key=f"{prefix}/sub/file-{i}", Body=b"x" * (i + 1))
    name = unique("channels")
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/{prefix}"}
    channels = [{"ChannelName": c, "DataSource": {"S3DataSource": source | {"S3DataDistributionType": d}}}
                for c, d in (("part", "ShardedByS3Key"), ("all", "FullyReplicated"))]
    script = ('cd /opt/ml/input/data; echo "part: $(cd part && find . -type f | sort | tr "\\n" " ")"; '
              'echo "all: $(find all -type f | wc -l)"; cat /opt/ml/input/config/resourceconfig.json | tr -d "\\n "; echo')
    sagemaker.create_training_job(**training_request(name, script, nodes=2, InputDataConfig=channels))
    job = wait_job(sagemaker, name)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    lines = log_lines(logs, name)
    parts = [set(line[6:].split()) for host in lines for line in lines[host] if line.startswith("part: ")]
    assert len(parts) == 2 and not parts[0] & parts[1]
    assert parts[0] | parts[1] == {f"./sub/file-{i}" for i in range(5)}
    assert all("all: 5" in lines[host] for host in lines)
    config = json.loads(next(line for line in lines["algo-2"] if line.startswith("{")))
    assert config["current_host"] == "algo-2" and config["hosts"] == ["algo-1", "algo-2"]
    assert config["instance_groups"][0]["instance_group_name"] == config["current_group_name"]


def test_a_failing_rank_stops_the_others_and_gives_the_reason(sagemaker, logs, bucket):
    name = unique("fails")
    script = ('M=/tmp/$TRAINING_JOB_NAME; if [ "$RANK" = 1 ]; then until [ -e $M ]; do sleep 0.01; done; rm $M; '
              'echo "cannot open data" >&2; exit 3; fi; trap "echo told; exit 0" TERM; touch $M; sleep 300 & wait')
    sagemaker.create_training_job(**training_request(name, script, nodes=2))
    job = wait_job(sagemaker, name, timeout=30)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("AlgorithmError: ")
    assert "cannot open data" in job["FailureReason"] and "exit code: 3" in job["FailureReason"].replace("exit code 3", "exit code: 3")
    # By the stamps of the runners, so that a slow test client does not count.
    events = logs.filter_log_events(logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=name + "/")["events"]
    at = {event["message"]: event["timestamp"] for event in events}
    assert 0 <= at["told"] - at["cannot open data"] <= 5000, events
    waiter = sagemaker.get_waiter("training_job_completed_or_stopped")
    with pytest.raises(botocore.exceptions.WaiterError):
        waiter.wait(TrainingJobName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 3})


def test_failure_file_becomes_the_reason(sagemaker, bucket):
    name = unique("failure-file")
    script = "printf 'ran out of luck' > /opt/ml/output/failure; exit 1"
    sagemaker.create_training_job(**training_request(name, script))
    assert "ran out of luck" in wait_job(sagemaker, name)["FailureReason"]


def test_command_not_found(sagemaker, bucket):
    name = unique("not-found")
    request = training_request(name, "")
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["/no/such/program"]
    sagemaker.create_training_job(**request)
    job = wait_job(sagemaker, name)
    assert job["TrainingJobStatus"] == "Failed" and "/no/such/program" in job["FailureReason"]


def test_empty_prefix_fails_with_the_channel(sagemaker, bucket):
    name = unique("empty")
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/nothing-here/"}
    sagemaker.create_training_job(**training_request(
        name, "true", InputDataConfig=[{"ChannelName": "train", "DataSource": {"S3DataSource": source}}]))
    job = wait_job(sagemaker, name)
    assert job["TrainingJobStatus"] == "Failed"
    assert "train" in job["FailureReason"] and "nothing-here" in job["FailureReason"]


def test_run_time_limit(sagemaker, bucket):
    name = unique("limit")
    sagemaker.create_training_job(
        **training_request(name, "sleep 60", StoppingCondition={"MaxRuntimeInSeconds": 1}))
    job = wait_job(sagemaker, name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")


@pytest.mark.parametrize("secondary", ["Pending", "Downloading", "Training", "Uploading"])
def test_stop_ends_in_stopped(sagemaker, s3, bucket, secondary):
    name, blocker = unique("stop"), None
    more, script = {}, 'trap "exit 0" TERM; echo up; sleep 300 & wait'
    if secondary == "Pending":  # another job holds every node
        blocker = unique("holds-all")
        sagemaker.create_training_job(**training_request(blocker, script, nodes=3))
        wait_status(sagemaker, blocker, "Training")
    if secondary == "Downloading":
        s3.put_object(Bucket=bucket, Key="big/file", Body=b"\0" * (256 << 20))
        source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/big/"}
        more["InputDataConfig"] = [{"ChannelName": f"c{i}", "DataSource": {"S3DataSource": source}} for i in range(8)]
    if secondary == "Uploading":
        script = "head -c 400M /dev/urandom > /opt/ml/model/weights"
    sagemaker.create_training_job(**training_request(name, script, **more))
    wait_status(sagemaker, name, secondary)
    sagemaker.stop_training_job(TrainingJobName=name)
    if secondary != "Pending":  # that one has ended already
        sagemaker.stop_training_job(TrainingJobName=name)  # twice is accepted
    job = wait_job(sagemaker, name)
    assert job["TrainingJobStatus"] == "Stopped", job
    with pytest.raises(sagemaker.exceptions.ClientError, match="has ended"):
        sagemaker.stop_training_job(TrainingJobName=name)
    if blocker:
        sagemaker.stop_training_job(TrainingJobName=blocker)
        assert wait_job(sagemaker, blocker)["TrainingJobStatus"] == "Stopped"
    if secondary == "Uploading":
        assert s3.head_object(Bucket=bucket, Key=f"out/{name}/output/model.tar.gz")["ContentLength"] > 0


def test_stop_in_starting_runs_nothing(own):
    own.client("s3").create_bucket(Bucket="e2e")
    sagemaker, logs, name = own.client("sagemaker"), own.client("logs"), unique("stop")
    with own.held_in_starting() as waiting:
        sagemaker.create_training_job(**training_request(name, "echo up; sleep 300", nodes=2))
        wait_for(lambda: len(waiting.read_text().splitlines()) == 2, what="a start of both runners")
        wait_status(sagemaker, name, "Starting")
        sagemaker.stop_training_job(TrainingJobName=name)
        sagemaker.stop_training_job(TrainingJobName=name)  # twice is accepted
        wait_status(sagemaker, name, "Stopping")
    job = wait_job(sagemaker, name)
    assert job["TrainingJobStatus"] == "Stopped", job
    assert "Training" not in statuses(job)
    assert not any("up" in lines for lines in log_lines(logs, name).values())
    with pytest.raises(sagemaker.exceptions.ClientError, match="has ended"):
        sagemaker.stop_training_job(TrainingJobName=name)


def test_a_waiting_job_says_why(sagemaker, bucket):
    first, second = unique("first"), unique("second")
    sagemaker.create_training_job(**training_request(first, "sleep 300", nodes=2))
    wait_status(sagemaker, first, "Training")
    sagemaker.create_training_job(**training_request(second, "true", nodes=2))
    job = wait_status(sagemaker, second, "Pending")
    message = job["SecondaryStatusTransitions"][-1]["StatusMessage"]
    assert "needs 2 nodes" in message and first in message
    sagemaker.stop_training_job(TrainingJobName=first)
    assert wait_job(sagemaker, second)["TrainingJobStatus"] == "Completed"


def test_lists_filter_and_page(sagemaker, bucket):
    prefix = unique("many")
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda i: sagemaker.create_training_job(**training_request(f"{prefix}-{i}", "exit 9")), range(23)))
    for i in range(23):
        wait_job(sagemaker, f"{prefix}-{i}", timeout=120)
    pages = sagemaker.get_paginator("list_training_jobs").paginate(
        NameContains=prefix, StatusEquals="Failed", SortBy="Name", SortOrder="Ascending", MaxResults=5)
    names = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    assert names == sorted(f"{prefix}-{i}" for i in range(23))
    assert sagemaker.list_training_jobs(NameContains=prefix, StatusEquals="Completed")["TrainingJobSummaries"] == []


def test_names_tags_and_refusals(sagemaker, bucket):
    name = unique("tags")
    tags = [{"Key": "team", "Value": "a"}]
    arn = sagemaker.create_training_job(**training_request(name, "true", Tags=tags))["TrainingJobArn"]
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == tags
    with pytest.raises(sagemaker.exceptions.ResourceInUse):
        sagemaker.create_training_job(**training_request(name, "true"))
    for change, words in (
            ({"TrainingJobName": "a" * 64}, "at most 63"),
            ({"HyperParameters": {f"k{i}": "v" for i in range(101)}}, "101 entries, at most 100"),
            ({"ResourceConfig": {"InstanceType": "ml.m5.larg", "InstanceCount": 1}}, "did you mean ml.m5.large"),
            ({"OutputDataConfig": {"S3OutputPath": "s3://no-such-bucket/x"}}, "does not exist")):
        with pytest.raises(sagemaker.exceptions.ClientError, match=words) as refused:
            sagemaker.create_training_job(**(training_request(unique("bad"), "true") | change))
        assert refused.value.response["Error"]["Code"] == "ValidationException"
    request = training_request(unique("image"), "true")
    request["AlgorithmSpecification"]["TrainingImage"] = "pytorch:2"
    with pytest.raises(sagemaker.exceptions.ClientError, match="pytorch:2.*images"):
        sagemaker.create_training_job(**request)
    with pytest.raises(sagemaker.exceptions.ResourceLimitExceeded, match="99 nodes"):
        sagemaker.create_training_job(**training_request(unique("wide"), "true", nodes=99))
    with pytest.raises(sagemaker.exceptions.ClientError, match="ValidationException"):
        sagemaker.describe_training_job(TrainingJobName="no-such-job")
    wait_job(sagemaker, name)


def test_checkpoints_are_restored_and_uploaded(sagemaker, s3, logs, bucket):
    prefix = unique("ckpt")
    s3.put_object(Bucket=bucket, Key=f"{prefix}/step-1/weights", Body=b"one")
    name = unique("checkpoints")
    script = "cat /opt/ml/checkpoints/step-1/weights; echo; mkdir /opt/ml/checkpoints/step-2; echo two > /opt/ml/checkpoints/step-2/weights"
    sagemaker.create_training_job(**training_request(
        name, script, CheckpointConfig={"S3Uri": f"s3://{bucket}/{prefix}"}))
    job = wait_job(sagemaker, name)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert "one" in log_lines(logs, name)["algo-1"]
    assert s3.get_object(Bucket=bucket, Key=f"{prefix}/step-2/weights")["Body"].read() == b"two\n"


def test_jobs_have_credentials_for_s3_and_no_keys(sagemaker, s3, logs, shared, bucket):
    name = unique("credentials")
    script = ('env | grep -E "^AWS_(ACCESS|SECRET)" && echo LEAKED; '
              f'cat {shared.data}/keys/root.json 2>&1 | sed "s/^/keys: /"; '
              'curl -s -H "Authorization: $AWS_CONTAINER_AUTHORIZATION_TOKEN" "$AWS_CONTAINER_CREDENTIALS_FULL_URI" | cut -c1-40; '
              f'aws --endpoint-url "$AWS_ENDPOINT_URL" s3 ls s3://{bucket}/ >/dev/null && echo LISTED')
    sagemaker.create_training_job(**training_request(name, script))
    job = wait_job(sagemaker, name)
    lines = log_lines(logs, name)["algo-1"]
    assert "LEAKED" not in lines
    assert not any("secret_key" in line for line in lines), lines
    assert any("AccessKeyId" in line for line in lines), lines
    assert "LISTED" in lines, (job, lines)


def test_jobs_may_not_manage_the_service(sagemaker, logs, bucket):
    name = unique("manage")
    script = (r'C=$(curl -s -H "Authorization: $AWS_CONTAINER_AUTHORIZATION_TOKEN" "$AWS_CONTAINER_CREDENTIALS_FULL_URI"); '
              r'f() { echo "$C" | sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/"; }; '
              r'curl -s --aws-sigv4 aws:amz:us-east-1:muster --user "$(f AccessKeyId):$(f SecretAccessKey)" '
              r'-H "X-Amz-Security-Token: $(f Token)" -H "Content-Type: application/json" '
              """-d '{"older_than_seconds":0}' "$AWS_ENDPOINT_URL/api/v1/prune" """)
    sagemaker.create_training_job(**training_request(name, script))
    wait_job(sagemaker, name)
    assert any("not good for managing" in line for line in log_lines(logs, name)["algo-1"]), log_lines(logs, name)
