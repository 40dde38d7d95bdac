"""Values of sampling flags, and remarks about a completion."""

import json

from absl import flags
from absl.testing import flagsaver
import pytest

from experiments.app import launch
from experiments.flags import generation_flags

USED = ({"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0})
FILE = "generation_config.json"


@pytest.mark.parametrize("tokens, ended", [
    ([5, 6], False), ([5, 0], True), ([5, 3], True), ([0, 5], False),
    ([], False)], ids=str)
def test_a_text_without_an_end(tokens, ended):
  with flagsaver.as_parsed(max_new_tokens="2"):
    assert generation_flags.unfinished(tokens, (0, 3)) == (
        "" if ended else
        "stopped at --max_new_tokens=2: the text is not complete.")


@pytest.mark.parametrize("settings, words", [
    (dict(do_sample=True, temperature=0.6, top_p=0.9),
     "--temperature=0.6 --top_p=0.9"),
    (dict(do_sample=True, temperature=0.7, top_p=1.0, top_k=20),
     "--temperature=0.7 --top_k=20"),
    (dict(do_sample=True, temperature=0.3, min_p=0.15),
     "--temperature=0.3 --min_p=0.15"),
    (dict(do_sample=True, temperature=1, top_p=1, top_k=0, min_p=None), ""),
    (dict(do_sample=True, temperature=None), ""),
    (dict(do_sample=True), ""),
    (dict(do_sample=False, temperature=0.6), ""),
    (dict(temperature=0.6), ""),
    (dict(temperature=0.6, repetition_penalty=1.05, no_repeat_ngram_size=3),
     "--repetition_penalty=1.05 --no_repeat_ngram_size=3"),
    (dict(do_sample=True, top_p=0.8, repetition_penalty=1.1),
     "--top_p=0.8 --repetition_penalty=1.1"),
    (dict(repetition_penalty=1, no_repeat_ngram_size=0), ""),
    (None, "")], ids=str)
def test_sampling_that_is_recommended(settings, words, tmp_path):
  if settings is not None:
    (tmp_path / FILE).write_text(json.dumps(settings))
  assert generation_flags.recommended(str(tmp_path), *USED) == (
      words and f"{FILE} of the target recommends {words}.")


def test_sampling_of_the_wrong_type_is_told(tmp_path):
  (tmp_path / FILE).write_text('{"do_sample": true, "top_k": "many"}')
  with pytest.raises(launch.UserError, match=f"{FILE}': top_k='?many'?: "):
    generation_flags.recommended(str(tmp_path), *USED)


def test_sampling_of_a_shipped_model_is_not_recommended():
  assert generation_flags.recommended("python-target", *USED) == ""
  with pytest.raises(launch.UserError, match="neither a folder"):
    generation_flags.recommended("python-tagret", *USED)


@pytest.mark.parametrize("name, value", [
    ("temperature", "-0.1"), ("top_p", "1.5"), ("top_p", "-1"), ("top_k", "-1"),
    ("min_p", "1.1"), ("min_p", "-0.1"), ("typical_p", "2"),
])
def test_values_outside_the_range(name, value):
  with pytest.raises(flags.IllegalFlagValueError,
                     match=f"^flag --{name}={value}: .* is not "):
    flags.FLAGS[name].parse(value)


def test_control_values_inside_the_range():
  for name, value in (("temperature", "0"), ("top_p", "0.9"), ("top_k", "40"),
                      ("min_p", "0.05"), ("typical_p", "1")):
    assert flags.FLAGS[name].parser.parse(value) == float(value)
