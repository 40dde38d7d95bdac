"""Tasks with prompts of their own: fields, templates, one-shot examples.

  python -m experiments.rsd --config=configs/rsd.py --config.task=humaneval \\
      --config.data=HumanEval.jsonl.gz --workdir=runs/humaneval

Hardware and minutes as in `configs/rsd.py`; numbers to expect depend on
the pair, and none are given here. docs/tasks.md has the commands of each task.

A task is a mapping with the fields

  formats: by any name, how a record becomes a prompt. The format whose fields
    the first record has is used; if several fit, the one with the most fields.
  ends: whether a row ends with the end of text.
  stop: a text is scored up to here, or to the first of several strings; "" for
    all of it. It ends no row.
  metrics: of `text_metrics.CORPUS`, for formats with answers. "pass_at_1" runs
    the code that a model has written, with `--config.run_code=True` alone.
  dataset: path, name and split for the package `datasets`, which is used if no
    file is given; a task may have none.
  file: of the package, which is used if neither is given; a task may have none.
  placeholder: the text of records that the data set leaves out; they are left
    out here as well. A task may have none.
  groups: names under which the summary puts some categories of records
    together; a task may have none.

and a format is a mapping with

  fields: by their names in the templates, where they are in a record: names and
    numbers of items separated by dots, "" for a record that is a text.
  template: of the prompt.
  answer: of what follows.
  reference: of what the text is compared with, if not with the answer; or of
    the program that tests it, with {{completion}} where the text goes.
  frames: for fields that may be empty: the text around those that are not.
  shots: fields of solved examples before the prompt; for chat models they are
    earlier turns.
  between: the text after an example.

The templates and examples are the project's own, but for those that a data set
has itself (HumanEval; MBPP's, of arXiv 2108.07732; Alpaca's instructions, which
the prompts of some Dolly files have). A base model sees them unchanged; with
`--config.chat=True` they are the user's turn in the chat template of the
target's tokenizer. Of conversations only the first turn is used, since the
second needs the answer to it. Files of DeepSpec, with `turns` for every task,
have the instructions in them and are for chat models.
"""

_ARTICLE = (
    "The town council of Marlow has closed the old bridge over the river to "
    "cars until the spring. Engineers found cracks in two of its pillars "
    "during an inspection last week. Pedestrians and cyclists may still cross. "
    "Repairs will cost about two million pounds, the council said, and buses "
    "will take a detour of three miles.")
_SUMMARY = ("A bridge has been closed to cars for months after cracks were "
            "found in its pillars.")
_ALPACA = ("Below is an instruction that describes a task. Write a response "
           "that appropriately completes the request.\n\n"
           "### Instruction:\n{instruction}\n\n{context}### Response:\n")
_MBPP = ("You are an expert Python programmer, and here is your task: {text} "
         "Your code should pass these tests:\n\n{tests}\n[BEGIN]\n")
# What Spec-Bench has of MT-Bench.
_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction",
             "stem", "humanities")
_TRANSLATION = {
    "template": "German: {german}\nEnglish:", "answer": " {english}",
    "between": "\n\n",
    "shots": ({"german": "Der Zug nach Hamburg fährt heute zehn Minuten später "
                         "ab.",
               "english": "The train to Hamburg leaves ten minutes later "
                          "today."},)}


def get_tasks():
  """Returns a dict from names of tasks to their mappings, see above."""
  return {
      "xsum": {
          "formats": {"one_shot": {
              "fields": {"document": "document", "summary": "summary"},
              "template": "Article: {document}\nSummary in one sentence:",
              "answer": " {summary}", "between": "\n\n",
              "shots": ({"document": _ARTICLE, "summary": _SUMMARY},)}},
          "ends": True, "stop": "\n", "metrics": ("rouge_2", "rouge_l"),
          "dataset": _dataset("EdinburghNLP/xsum")},
      # Articles continued, as the repository of Sequoia has them.
      "cnn_dailymail": {
          "formats": {"article": {"fields": {"article": "article"},
                                  "template": "{article}"}},
          "ends": True, "stop": "", "metrics": (),
          "dataset": _dataset("abisee/cnn_dailymail", "1.0.0")},
      "wmt18_de_en": {
          "formats": {
              "hub": {"fields": {"german": "translation.de",
                                 "english": "translation.en"}, **_TRANSLATION},
              "pairs": {"fields": {"german": "de", "english": "en"},
                        **_TRANSLATION},
              # A list of finished prompts, without references.
              "prompts": {"fields": {"prompt": ""}, "template": "{prompt}"}},
          "ends": True, "stop": "\n", "metrics": ("bleu",),
          "dataset": _dataset("wmt/wmt18", "de-en")},
      "dolly": {
          "formats": {
              "hub": {"fields": {"instruction": "instruction",
                                 "context": "context", "response": "response"},
                      "template": _ALPACA, "answer": "{response}",
                      "frames": {"context": "### Input:\n{}\n\n"}},
              "prompts": {"fields": {"prompt": "prompt", "answer": "answer"},
                          "template": "{prompt}\n", "answer": "{answer}"}},
          "ends": True, "stop": "", "metrics": ("rouge_2", "rouge_l"),
          "dataset": _dataset("databricks/databricks-dolly-15k", "", "train")},
      "questions": _of_turns(groups={"mt_bench": _MT_BENCH},
                             file="questions.jsonl"),
      "spec_bench": _of_turns(groups={"mt_bench": _MT_BENCH}),
      # The records of other data sets that it refers to are placeholders.
      "speed_bench": _of_turns(
          dataset=_dataset("nvidia/SPEED-Bench", "qualitative"),
          placeholder="FULL BENCHMARK DATA SHOULD BE FETCHED"),
      "mt_bench": _of_turns(
          "prompt.0", dataset=_dataset("HuggingFaceH4/mt_bench_prompts", "",
                                       "train")),
      "math500": _of_turns("problem",
                           dataset=_dataset("HuggingFaceH4/MATH-500")),
      "livecodebench": _of_turns(),
      "arena_hard": _of_turns("prompt"),
      "humaneval": {
          "formats": {"completion": {
              "fields": {"prompt": "prompt", "test": "test",
                         "entry_point": "entry_point"},
              "template": "{prompt}",
              "reference": "{prompt}{{completion}}\n\n{test}\n"
                           "check({entry_point})"}, "turns": _turns()},
          # What comes after a function, as in arXiv 2107.03374.
          "ends": True, "metrics": ("pass_at_1",),
          "stop": ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```"),
          "dataset": _dataset("openai/openai_humaneval")},
      "mbpp": {
          "formats": {"turns": _turns(), "one_shot": {
              "fields": {"text": "text", "tests": "test_list", "code": "code"},
              "template": _MBPP, "answer": "{code}\n[DONE]",
              "reference": "{{completion}}\n{tests}",
              "between": "\n\n",
              "shots": ({"text": "Write a function that returns the sum of the "
                                 "even numbers of a list.",
                         "tests": "assert sum_even([1, 2, 4]) == 6\n"
                                  "assert sum_even([]) == 0",
                         "code": "def sum_even(numbers):\n  return sum(n for n "
                                 "in numbers if n % 2 == 0)"},)}},
          "ends": True, "stop": "[DONE]", "metrics": ("pass_at_1",),
          "dataset": _dataset("google-research-datasets/mbpp", "full")},
      "gsm8k": {
          "formats": {"turns": _turns(), "one_shot": {
              "fields": {"question": "question", "answer": "answer"},
              "template": "Question: {question}\nAnswer:",
              "answer": " {answer}", "between": "\n\n",
              "shots": ({"question": "A box holds 12 pencils. How many pencils "
                                     "are in 3 boxes and 4 more?",
                         "answer": "3 boxes hold 3 * 12 = 36 pencils.\nWith 4 "
                                   "more there are 36 + 4 = 40.\n#### 40"},)}},
          "ends": True, "stop": "\n\n", "metrics": ("exact_match",),
          "dataset": _dataset("openai/gsm8k", "main")},
  }


def _of_turns(field="", **more):
  """Returns a task of `turns`; other files have prompts in `field`."""
  formats = {"turns": _turns(), **({"hub": _turns(field)} if field else {})}
  return {"formats": formats, "ends": True, "stop": "", "metrics": (), **more}


def _turns(field="turns.0"):
  """Returns the format of Spec-Bench and DeepSpec: the turns of a user."""
  return {"fields": {"turn": field}, "template": "{turn}\n"}


def _dataset(path, name="", split="test"):
  return {"path": path, "name": name, "split": split}
