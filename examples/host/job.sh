#!/bin/bash
# What a job finds in its node and what it leaves there. Runs once on each node.
set -euo pipefail
echo "rank $RANK of $WORLD_SIZE on $(hostname); rank 0 listens on $MASTER_ADDR:$MASTER_PORT"

fail() {
  printf %s "$1" >/opt/ml/output/failure  # becomes the job's FailureReason
  exit 1
}
steps=$(sed -n 's/.*"steps" *: *"\([0-9]*\)".*/\1/p' /opt/ml/input/config/hyperparameters.json)
[[ -n $steps ]] || fail "the hyperparameter steps is missing"

for ((step = 1; step <= steps; step++)); do
  echo "step=$step/$steps loss=$((100 / step))"
  echo "$step" >"/opt/ml/checkpoints/rank-$RANK.step"  # to S3 while it runs, if the job has a CheckpointConfig
done
if [[ $RANK == 0 ]]; then echo "trained for $steps steps" >/opt/ml/model/model.txt; fi  # model.tar.gz holds it
