"""Processing jobs through boto3."""
from conftest import ROLE, log_lines, unique, wait_for


def processing_request(name, script, bucket, nodes=1, **more):
    return {
        "ProcessingJobName": name, "RoleArn": ROLE,
        "AppSpecification": {"ImageUri": "muster/host", "ContainerEntrypoint": ["/bin/bash", "-c", script]},
        "ProcessingResources": {"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": nodes,
                                                  "VolumeSizeInGB": 1}},
    } | more


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

    def ended(job_name):
        job = sagemaker.describe_processing_job(ProcessingJobName=job_name)
        return job if job["ProcessingJobStatus"] in ("Completed", "Failed", "Stopped") else None
    job = wait_for(lambda: ended(name))
    assert job["ProcessingJobStatus"] == "Failed" and "broken" in job["FailureReason"]
    name = unique("long")
    sagemaker.create_processing_job(**processing_request(name, "sleep 300", bucket))
    sagemaker.stop_processing_job(ProcessingJobName=name)
    assert wait_for(lambda: ended(name))["ProcessingJobStatus"] == "Stopped"
    names = [j["ProcessingJobName"] for j in sagemaker.list_processing_jobs(StatusEquals="Stopped")["ProcessingJobSummaries"]]
    assert name in names
