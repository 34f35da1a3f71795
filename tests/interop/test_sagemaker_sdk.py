"""The SageMaker SDK 3, unmodified, with nothing but the settings of `muster env --sagemaker-sdk`."""
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import textwrap

from conftest import BIN, ROLE, unique

SOURCE = pathlib.Path(__file__).parent / "source"


def exports(shared):
    """What a shell would have after eval "$(muster env --sagemaker-sdk)"."""
    printed = subprocess.run([BIN / "muster", "env", "--sagemaker-sdk", "--data", shared.data],
                             capture_output=True, text=True, check=True, timeout=60).stdout
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return kept | dict(re.findall(r"^export (\w+)='(.*)'$", printed, re.M))


def test_model_trainer_with_source_code_on_two_instances(shared, sagemaker, s3, tmp_path):
    environment = exports(shared) | {"COLUMNS": "400"}  # the SDK wraps lines at the width of the terminal
    name = unique("sdk")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2\n")
    script = tmp_path / "launch.py"
    script.write_text(textwrap.dedent(f"""
        import logging
        logging.basicConfig(level=logging.INFO)  # the SDK shows job logs by its logger
        from sagemaker.train.model_trainer import ModelTrainer
        from sagemaker.train.configs import Compute, InputData, SourceCode, StoppingCondition

        trainer = ModelTrainer(
            training_image="muster/host", role="{ROLE}", base_job_name="{name}",
            source_code=SourceCode(source_dir="{SOURCE}", entry_script="train.py"),
            compute=Compute(instance_type="ml.m5.large", instance_count=2, volume_size_in_gb=1),
            stopping_condition=StoppingCondition(max_runtime_in_seconds=600),
            hyperparameters={{"epochs": 3, "lr": 0.1}})
        trainer.train(input_data_config=[InputData(channel_name="train", data_source="{tmp_path / 'data'}")],
                      wait=True, logs=True)
        print("TRAINED", trainer._latest_training_job.training_job_name)
    """))
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=180,
                          cwd=tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5000:]
    for host in ("algo-1", "algo-2"):
        assert f"training on {host} of 2 epochs=3 lr=0.1" in output, output[-5000:]
    assert "data: ['a.csv']" in output
    job = sagemaker.describe_training_job(TrainingJobName=re.search(r"TRAINED (\S+)", output)[1])
    assert job["TrainingJobStatus"] == "Completed"
    bucket, key = job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").split("/", 1)
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert {m.name.removeprefix("./") for m in tar.getmembers() if m.isfile()} == {"weights-algo-1", "weights-algo-2"}
