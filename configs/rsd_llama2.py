"""The paper's comparison on Llama 2: draft length and target budget, by task.

  python -m experiments.rsd --config=configs/rsd_llama2.py:7b,xsum \\
      --config.target=<folder of Llama-2-7b-hf> --config.draft=<drafter> \\
      --workdir=runs/llama2-7b-xsum
  python -m experiments.rsd --config=configs/rsd_llama2.py:7b-chat,dolly \\
      --config.data=databricks-dolly-15k.jsonl --config.target=... \\
      --config.draft=... --workdir=runs/llama2-7b-chat-dolly

Presets are a model (7b, 13b, 70b, 7b-chat, 13b-chat, 70b-chat) and a task:
those of the paper (arXiv 2402.14160), xsum, wmt18_de_en and dolly, or another
of `configs/tasks.py`. Without `--config.data` the package `datasets` loads it
(`pip install -e '.[tasks]'`). Folders are those of Hugging Face or of
`experiments.convert`; the drafter must have Llama 2's tokenizer.

Hardware: an accelerator. The weights of the target alone, in bfloat16, are
13.5 GB (7b), 26 GB (13b) and 138 GB (70b); a position of the cache is 0.5, 0.8
and 0.3 MiB. So at batch 1 a device of 24 GB should do for 7b and one of 40 GB
for 13b; 70b needs more than 141 GB, or `--mesh=model:8` of devices of 24 GB.
These are sums, not measurements.
Minutes: never run.
To expect: the paper's abstract says that RSD outperforms the baselines
consistently at a fixed draft length, and in most cases at a fixed budget of the
target. Figures will not be the paper's digit by digit: templates, examples,
numbers of prompts and the drafter are not its own.
"""

from configs import rsd

_MODELS = {f"{size}{kind}": f"checkpoints/Llama-2-{size}{kind}-hf"
           for kind in ("", "-chat") for size in ("7b", "13b", "70b")}
_DRAFT = "checkpoints/llama-2-draft"


def get_config(presets="7b,xsum"):
  """Returns the configuration of `experiments.rsd`, see `rsd.py`.

  Args:
    presets: a model and a task.

  Returns:
    A ConfigDict.
  """
  return rsd.of_published(presets, _MODELS, _DRAFT)
