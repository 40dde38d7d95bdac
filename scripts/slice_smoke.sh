#!/usr/bin/env bash
# What a slice should do before a long run, in about ten minutes: decode with a
# random 7B on all chips, write the same greedy texts with a tree as without one
# when arrays are split, and resume a run that was stopped. No download.
#
#   scripts/tpu_slice.sh run bash scripts/slice_smoke.sh
#
# All machines run it; SHAPE=tiny MESH=data:2,model:2 tries it on one CPU.
set -euo pipefail
cd "$(dirname "$0")/.."
mesh=${MESH:-auto} shape=${SHAPE:-7b} out=${OUT:-runs/slice_smoke}
mkdir -p "$out"
rm -rf "$out"/{forwards,plain,tree,stopped}
seq -f 'def function_%g(' 16 > "$out/prompts.txt"

complete() {  # <workdir> <flags>
  python3 -m experiments.complete --prompts="$out/prompts.txt" --batch=16 \
    --mesh="$mesh" --compilation_cache= --workdir="$out/$1" "${@:2}"
}

echo "== A random model of shape $shape on all chips"
[[ -d $out/$shape ]] ||
  JAX_PLATFORMS=cpu python3 scripts/random_model.py "$shape" "$out/$shape"
complete forwards --target="$out/$shape" --draft=layers:1 \
  --method="rsd_s(3, 2)" --max_new_tokens=32

echo "== Greedy texts with and without a tree"
for method in autoregressive "rsd_s(3, 2)"; do
  folder=tree; [[ $method == autoregressive ]] && folder=plain
  complete $folder --target=python-target --draft=python-draft \
    --dtype=float32 --temperature=0 --max_new_tokens=32 --method="$method"
done
# Only the first machine has results.
if [[ -s $out/plain/results.jsonl ]]; then
  python3 - "$out" <<'PYTHON'
import json, pathlib, sys
plain, tree = ({x["prompt"]: x["text"] for x in map(json.loads, (
    pathlib.Path(sys.argv[1]) / name / "results.jsonl").open())}
    for name in ("plain", "tree"))
different = [i for i in plain if plain[i] != tree.get(i)]
print(f"{len(plain)} greedy texts, {len(different)} differ")
sys.exit(bool(different) or len(plain) != 16)
PYTHON
fi

echo "== A run that is stopped after its first result, and resumed"
# No function: the signal is for Python, not for a shell around it.
run=(python3 -m experiments.rsd --config=configs/rsd.py:smoke --mesh="$mesh"
     --config.batch=16 --config.methods="('rsd_s',)" --config.budgets="()"
     --workdir="$out/stopped")
"${run[@]}" & process=$!
until [[ -s $out/stopped/results.jsonl ]] || ! kill -0 $process 2> /dev/null; do
  sleep 1
done
kill -TERM $process 2> /dev/null || true
wait $process
"${run[@]}"
echo "== The slice is ready"
