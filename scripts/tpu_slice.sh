#!/usr/bin/env bash
# Runs commands on all machines of a TPU slice, got as a queued resource.
#
#   export NAME=rsd ZONE=us-west4-a        # and TYPE, VERSION, BUCKET, see below
#   scripts/tpu_slice.sh create            # waits until the slice is there
#   scripts/tpu_slice.sh setup             # copies this repository, installs
#   scripts/tpu_slice.sh run bash scripts/slice_smoke.sh
#   scripts/tpu_slice.sh run python3 -m experiments.rsd \
#       --config=configs/rsd_llama2.py:7b,xsum --config.dtype=bfloat16 \
#       --config.batch=16 --mesh=data:8,model:2 --workdir=runs/xsum
#   scripts/tpu_slice.sh fetch && scripts/tpu_slice.sh delete
#
# After a preemption: delete, create, setup, and the same `run`, which resumes
# if BUCKET (gs://bucket/folder) is set: `run` first copies runs/ from there to
# the machines, and afterwards, also if it fails, back from the first one. A
# copy is made every five minutes, too.
#
# The token of the Hugging Face hub is read from the file HF_TOKEN_FILE (by
# default where `hf auth login` leaves it) and copied as a file: whatever is on
# a command line shows in lists of processes and in logs.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${NAME:?name of the slice}" "${ZONE:?such as us-west4-a}"
TYPE=${TYPE:-v5litepod-16}              # v6e-16
VERSION=${VERSION:-v2-alpha-tpuv5-lite}  # v2-alpha-tpuv6e
HF_TOKEN_FILE=${HF_TOKEN_FILE:-$HOME/.cache/huggingface/token}
BUCKET=${BUCKET:-}

tpu() { gcloud compute tpus "$@" --zone="$ZONE"; }
ssh() { tpu tpu-vm ssh "$NAME" --worker="$1" --command="$2"; }

case ${1:-} in
  create)
    tpu queued-resources create "$NAME" --node-id="$NAME" \
      --accelerator-type="$TYPE" --runtime-version="$VERSION" --spot
    until state=$(tpu queued-resources describe "$NAME" \
                    --format='value(state.state)'); [[ $state == ACTIVE ]]; do
      [[ $state != FAILED && $state != SUSPENDED ]] ||
        { echo "the request is $state" >&2; exit 1; }
      echo "${state:-unknown}"; sleep 30
    done ;;
  setup)
    # What git knows, without runs and caches.
    archive=$(mktemp); trap 'rm -f "$archive"' EXIT
    git archive --format=tar.gz -o "$archive" HEAD
    tpu tpu-vm scp --worker=all "$archive" "$NAME:decoding_jax.tar.gz"
    ssh all 'mkdir -p decoding_jax .cache/huggingface &&
      tar xzf decoding_jax.tar.gz -C decoding_jax &&
      cd decoding_jax && pip install -e ".[tpu,hf,tasks]"'
    if [[ -s $HF_TOKEN_FILE ]]; then
      tpu tpu-vm scp --worker=all "$HF_TOKEN_FILE" \
        "$NAME:.cache/huggingface/token"
      ssh all 'chmod 600 .cache/huggingface/token'
    fi ;;
  run)
    printf -v command '%q ' "${@:2}"
    if [[ $BUCKET ]]; then
      copy="gcloud storage rsync --recursive"
      ssh all "mkdir -p decoding_jax/runs &&
        { $copy $BUCKET decoding_jax/runs || echo nothing to copy; }"
      while sleep 300; do
        ssh 0 "$copy decoding_jax/runs $BUCKET" || true
      done & copying=$!
      trap 'kill $copying; ssh 0 "$copy decoding_jax/runs $BUCKET"' EXIT
    fi
    ssh all "cd decoding_jax && $command" ;;
  fetch)
    tpu tpu-vm scp --recurse --worker=0 "$NAME:decoding_jax/runs" . ;;
  delete)
    tpu queued-resources delete "$NAME" --force --quiet ;;
  *)
    echo "usage: $0 create|setup|run <command>|fetch|delete" >&2; exit 2 ;;
esac
