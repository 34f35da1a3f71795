"""Jobs of muster/train on two nodes: checkpoints in S3, stopping and going on, metrics."""
import io
import json
import re
import subprocess
import tarfile

import pytest

from conftest import BIN, log_lines, training_request, unique, wait_for, wait_job


@pytest.fixture(scope="module")
def shards(s3, bucket, token_shards):
    """Token shards in S3: the URI of their folder."""
    prefix = unique("shards")
    for file in token_shards.iterdir():
        s3.upload_file(str(file), bucket, f"{prefix}/{file.name}")
    return f"s3://{bucket}/{prefix}/"


def channel(name, uri):
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}}


def start(sagemaker, name, bucket, channels, prefix, steps, more=None):
    parameters = {"train.steps": steps, "run.threads": 1, "checkpoint.every": 5, "checkpoint.keep": 1, "log.every": 1,
                  **(more or {})}
    request = training_request(name, "", nodes=2, bucket=bucket, InputDataConfig=channels,
                               HyperParameters={key: str(value) for key, value in parameters.items()},
                               CheckpointConfig={"S3Uri": f"s3://{bucket}/{prefix}"})
    request["AlgorithmSpecification"] = {"TrainingImage": "muster/train", "TrainingInputMode": "File"}
    del request["Environment"]
    sagemaker.create_training_job(**request)


def objects(s3, bucket, prefix):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/")
    return {o["Key"][len(prefix) + 1:]: o["Size"] for page in pages for o in page.get("Contents", [])}


def finished_steps(s3, bucket, prefix):
    """The steps whose manifest is in S3: each must be there as a whole."""
    steps = []
    there = objects(s3, bucket, prefix)
    for key in sorted(key for key in there if key.endswith("/manifest.json")):
        manifest = json.loads(s3.get_object(Bucket=bucket, Key=f"{prefix}/{key}")["Body"].read())["manifest"]
        folder = key.removesuffix("manifest.json")
        assert {file["node"] for file in manifest["files"]} == {0, 1}
        for file in manifest["files"]:
            assert there.get(folder + file["name"]) == file["bytes"], (key, file["name"])
        steps.append(manifest["step"])
    return sorted(steps)


def test_a_stopped_job_goes_on_from_s3(sagemaker, s3, logs, bucket, shards):
    config = unique("config")
    s3.put_object(Bucket=bucket, Key=f"{config}/run.toml", Body=b"""
[model]
preset = "tiny"
[train]
sequence = 16
batch = 4
micro_batch = 2
steps = 3  # the hyperparameter wins
""")
    channels = [channel("train", shards), channel("config", f"s3://{bucket}/{config}/")]
    prefix = unique("model-ckpt")
    name = unique("model")
    start(sagemaker, name, bucket, channels, prefix, 1_000_000)

    def trained():
        lines = log_lines(logs, name).get("algo-1", [])
        return any(line.startswith("checkpoint step=20 ") for line in lines)
    wait_for(trained, 90, "step 20")
    finished_steps(s3, bucket, prefix)  # whatever is there by now
    sagemaker.stop_training_job(TrainingJobName=name)
    job = wait_job(sagemaker, name)
    lines = log_lines(logs, name)["algo-1"]
    assert job["TrainingJobStatus"] == "Stopped", lines[-5:]
    stopped = next(int(m[1]) for line in lines if (m := re.match(r"stopped at step (\d+) of 1000000; start again", line)))
    assert finished_steps(s3, bucket, prefix)[-1] == stopped

    name = unique("model")
    start(sagemaker, name, bucket, channels, prefix, 1_000_000)
    again = wait_for(lambda: [line for line in log_lines(logs, name).get("algo-1", []) if line.startswith("resume ")], 90,
                     "the resume")
    assert again[0].startswith(f"resume step={stopped} ")
    wait_for(lambda: any(line.startswith("step=") for line in log_lines(logs, name)["algo-1"]), 60, "a step")
    sagemaker.stop_training_job(TrainingJobName=name)
    assert wait_job(sagemaker, name)["TrainingJobStatus"] == "Stopped"
    body = s3.get_object(Bucket=bucket, Key=f"out/{name}/output/output.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        records = [json.loads(line) for line in tar.extractfile("metrics.jsonl")]
    steps = [record["step"] for record in records if record["type"] == "step"]
    assert steps == list(range(stopped + 1, stopped + 1 + len(steps)))


def test_a_step_longer_than_the_grace_is_dropped(sagemaker, s3, logs, bucket, shards):
    prefix = unique("model-ckpt")
    name = unique("model")
    start(sagemaker, name, bucket, [channel("train", shards)], prefix, 10,
          {"model.preset": "llama-5m", "train.sequence": 16, "train.micro_batch": 1, "train.batch": 120_000})
    wait_for(lambda: any(line.startswith("start ranks=2 ") for line in log_lines(logs, name).get("algo-1", [])), 90,
             "the first step")
    sagemaker.stop_training_job(TrainingJobName=name)
    assert wait_job(sagemaker, name)["TrainingJobStatus"] == "Stopped"
    lines = log_lines(logs, name)["algo-1"]
    assert any(line.startswith("notice: step 1 is dropped, ") for line in lines), lines
    assert any(line.startswith("stopped at step 0 of 10;") for line in lines), lines
    assert finished_steps(s3, bucket, prefix) == [0]
