"""Processing jobs through boto3."""
import gzip
import json
import re
import subprocess

from conftest import BIN, ROLE, ROOT, log_lines, unique, wait_for


def processing_request(name, script, bucket, nodes=1, **more):
    return {
        "ProcessingJobName": name, "RoleArn": ROLE,
        "AppSpecification": {"ImageUri": "muster/host", "ContainerEntrypoint": ["/bin/bash", "-c", script]},
        "ProcessingResources": {"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": nodes,
                                                  "VolumeSizeInGB": 1}},
    } | more


def ended(sagemaker, name):
    job = sagemaker.describe_processing_job(ProcessingJobName=name)
    return job if job["ProcessingJobStatus"] in ("Completed", "Failed", "Stopped") else None


def test_shared_nothing_fleet(shared, sagemaker, s3, logs, bucket):
    prefix = unique("text")
    for i in range(4):
        s3.put_object(Bucket=bucket, Key=f"{prefix}/in/{i}.txt", Body=f"line {i}\n".encode())
    name = unique("upper")
    script = ('cd /opt/ml/processing; for f in input/text/*; do tr a-z A-Z < $f > output/out/$(basename $f); done; '
              'test -s /opt/ml/config/processingjobconfig.json; test -s /opt/ml/config/resourceconfig.json; '
              'echo "did $(ls input/text | wc -l)" > /opt/ml/output/message')
    sagemaker.create_processing_job(**processing_request(
        name, script, bucket, nodes=2,
        ProcessingInputs=[{"InputName": "text", "S3Input": {
            "S3Uri": f"s3://{bucket}/{prefix}/in", "LocalPath": "/opt/ml/processing/input/text",
            "S3DataType": "S3Prefix", "S3InputMode": "File", "S3DataDistributionType": "ShardedByS3Key"}}],
        ProcessingOutputConfig={"Outputs": [{"OutputName": "out", "S3Output": {
            "S3Uri": f"s3://{bucket}/{prefix}/out", "LocalPath": "/opt/ml/processing/output/out",
            "S3UploadMode": "EndOfJob"}}]}))
    sagemaker.get_waiter("processing_job_completed_or_stopped").wait(
        ProcessingJobName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    job = sagemaker.describe_processing_job(ProcessingJobName=name)
    assert job["ProcessingJobStatus"] == "Completed", job.get("FailureReason")
    assert job["ExitMessage"].strip() == "did 2"
    for i in range(4):
        assert s3.get_object(Bucket=bucket, Key=f"{prefix}/out/{i}.txt")["Body"].read() == f"LINE {i}\n".encode()


def test_failure_and_stop(sagemaker, bucket):
    name = unique("bad")
    sagemaker.create_processing_job(**processing_request(name, "echo broken >&2; exit 4", bucket))

    job = wait_for(lambda: ended(sagemaker, name))
    assert job["ProcessingJobStatus"] == "Failed" and "broken" in job["FailureReason"]
    name = unique("long")
    sagemaker.create_processing_job(**processing_request(name, "sleep 300", bucket))
    sagemaker.stop_processing_job(ProcessingJobName=name)
    assert wait_for(lambda: ended(sagemaker, name))["ProcessingJobStatus"] == "Stopped"
    names = [j["ProcessingJobName"] for j in sagemaker.list_processing_jobs(StatusEquals="Stopped")["ProcessingJobSummaries"]]
    assert name in names


def tokens_request(name, bucket, prefix, nodes, *options):
    """muster-data tokenize of JSON lines; each node has its share of the files and the whole tokenizer."""
    def source(folder, distribution):
        return {"InputName": folder, "S3Input": {
            "S3Uri": f"s3://{bucket}/{prefix}/{folder}/", "LocalPath": f"/opt/ml/processing/input/{folder}",
            "S3DataType": "S3Prefix", "S3InputMode": "File", "S3DataDistributionType": distribution}}
    return processing_request(name, "", bucket, nodes=nodes) | {
        "AppSpecification": {"ImageUri": "muster/data", "ContainerArguments": [
            "tokenize", "--input", "/opt/ml/processing/input/text", "--allow-empty", "--held-out", "0.2", *options,
            "--tokenizer", "/opt/ml/processing/input/tokenizer/tokenizer.model", "--output", "/opt/ml/processing/output/tokens"]},
        "ProcessingInputs": [source("text", "ShardedByS3Key"), source("tokenizer", "FullyReplicated")],
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "tokens", "S3Output": {
            "S3Uri": f"s3://{bucket}/{prefix}/tokens-{nodes}", "LocalPath": "/opt/ml/processing/output/tokens",
            "S3UploadMode": "EndOfJob"}}]}}


def upload_tokenizer(s3, bucket, prefix, folder):
    subprocess.run([BIN / "muster-data", "train-tokenizer", "--input", ROOT / "docs/STYLE.md", "--output", folder,
                    "--vocab-size", "400"], check=True, capture_output=True, timeout=60)
    s3.upload_file(str(folder / "tokenizer.model"), bucket, f"{prefix}/tokenizer/tokenizer.model")


def test_json_lines_become_shards_on_any_number_of_nodes(shared, sagemaker, s3, bucket, tmp_path):
    prefix = unique("jsonl")
    documents = [f"Document {i}: " + " ".join(str(i * k) for k in range(40)) for i in range(300)]
    upload_tokenizer(s3, bucket, prefix, tmp_path)
    for part in range(3):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents[part::3]).encode()
        s3.put_object(Bucket=bucket, Key=f"{prefix}/text/{part}.jsonl.gz", Body=gzip.compress(lines))
    totals = {}
    for nodes in (1, 2):
        name = unique("tokens")
        sagemaker.create_processing_job(**tokens_request(name, bucket, prefix, nodes))
        sagemaker.get_waiter("processing_job_completed_or_stopped").wait(
            ProcessingJobName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        job = sagemaker.describe_processing_job(ProcessingJobName=name)
        assert job["ProcessingJobStatus"] == "Completed", job.get("FailureReason")
        for part in ("train", "held-out"):
            folder = tmp_path / f"{part}-{nodes}"
            folder.mkdir()
            for item in s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/tokens-{nodes}/{part}/")["Contents"]:
                s3.download_file(bucket, item["Key"], str(folder / item["Key"].rsplit("/", 1)[1]))
            info = subprocess.run([BIN / "muster-data", "info", folder], check=True, capture_output=True, text=True, timeout=60)
            totals[nodes, part] = re.search(r"^total .* shards?\b(.*)", info.stdout, re.M)[1].split()
    assert totals[1, "train"] == totals[2, "train"] and totals[1, "held-out"] == totals[2, "held-out"]
    assert int(totals[1, "train"][1]) + int(totals[1, "held-out"][1]) == 300


def test_a_bad_line_is_the_reason_of_the_failure(sagemaker, s3, bucket, tmp_path):
    prefix = unique("badline")
    upload_tokenizer(s3, bucket, prefix, tmp_path)
    s3.put_object(Bucket=bucket, Key=f"{prefix}/text/a.jsonl", Body=b'{"text": "good"}\n{"text": 7}\n')
    name = unique("badline")
    sagemaker.create_processing_job(**tokens_request(name, bucket, prefix, 1))
    job = wait_for(lambda: ended(sagemaker, name))
    assert job["ProcessingJobStatus"] == "Failed"
    assert 'a.jsonl line 2: field "text" is no string' in job["FailureReason"], job["FailureReason"]
    assert "--skip-bad-lines" in job["FailureReason"]
