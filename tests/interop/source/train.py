"""A training script as a user brings it: reads its hyperparameters, says who it is, leaves a model."""
import argparse
import json
import os
import pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--lr", type=float)
arguments = parser.parse_args()
config = json.loads(pathlib.Path("/opt/ml/input/config/resourceconfig.json").read_text())
print(f"training on {config['current_host']} of {len(config['hosts'])} epochs={arguments.epochs} lr={arguments.lr}")
print("data:", sorted(p.name for p in pathlib.Path(os.environ["SM_CHANNEL_TRAIN"]).iterdir()))
pathlib.Path(os.environ["SM_MODEL_DIR"], f"weights-{config['current_host']}").write_text("1")
