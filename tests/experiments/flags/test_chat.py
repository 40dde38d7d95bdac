"""A chat in the terminal: answers of whole prompts, caches that are kept."""

import functools
import re

from absl.testing import flagsaver
import jax
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import model_pair
from experiments import generate
from experiments.flags import chat, model_flags
from models import checkpoints, transformer
from models.text import batching, chat_template
from support import helpers, tiny_models as tiny

pytestmark = pytest.mark.usefixtures("parsed_flags")
NEW = 6
PLAIN = dj.methods.autoregressive()
ARGUMENTS = dict(method=PLAIN, max_new_tokens=NEW,
                 sampling=dj.Sampling(temperature=0), eos_id=3)


def begin(*args):
  target = tiny.llama_models().target
  return dj.begin(*args, target=target.lm._replace(max_length=0),
                  target_params=target.params, **ARGUMENTS)


def finish(run):
  while not run.done.all():
    run, _ = dj.step(run)
  return run


def text(run):
  return np.asarray(run.tokens[0, :int(run.lengths[0])]).tolist()


def test_a_prompt_that_goes_on_is_not_read_again(monkeypatch):
  monkeypatch.setattr(chat, "_ROOM", 16)
  prompted = functools.partial(chat.prompted, begin)
  run, read = prompted(None, [5, 1, 12], 40)
  assert read == 3 and run.context.prompts.shape == (1, 16)
  first = text(finish(run))
  whole = [*first, 4, 8]
  more, read = prompted(finish(run), whole, 40)
  assert read == 2 and text(more) == whole
  assert text(finish(more)) == text(finish(prompted(None, whole, 40)[0]))
  # Another beginning, and a text for which there is no room.
  other = [*first[:-1], 0 if first[-1] else 1, 4]
  assert prompted(more, other, 40)[1] == len(other)
  long = [*text(finish(more)), 4, 8, 9]
  run, read = prompted(finish(more), long, len(long))
  assert read == len(long) == run.context.prompts.shape[1] > 16


@pytest.fixture(name="target")
def _target(tmp_path):
  """A folder with a template, of a model of 64 positions."""
  tokenizer = helpers.chat_model(tmp_path)
  config = transformer.Config(
      vocab_size=280, dim=8, num_layers=1, num_heads=1, num_kv_heads=1,
      head_dim=4, hidden_dim=8, max_length=64)
  folder = tmp_path / "model"
  checkpoints.save(folder, config, tiny.init(jax.random.key(0), config),
                   tokenizer)
  helpers.chat_model(folder)
  return str(folder)


def converse(target, monkeypatch, lines, methods=(PLAIN,), **values):
  def ask(prompt):
    assert not prompt
    if not lines:
      raise EOFError
    return lines.pop(0)

  monkeypatch.setattr("builtins.input", ask)
  monkeypatch.setattr("sys.stdin", open("/dev/null", encoding="utf-8"))
  with flagsaver.as_parsed(target=target, chat="true", compilation_cache="",
                           max_new_tokens=str(NEW), temperature="0",
                           method="autoregressive", **values):
    assert not generate._PROMPT.present  # Whose flags these are.
    chat.converse(model_pair.open_pair(model_flags.TARGET.value, ""), methods)


def test_answers_are_those_of_whole_prompts(target, monkeypatch, capsys):
  lines = ["Hi", "", "there", "Hi there", "/exit", "Hi"]
  converse(target, monkeypatch, lines)
  assert lines == ["Hi"]
  out = capsys.readouterr()
  pair = helpers.load_pair(target, "")
  write = chat_template.encoder(target, pair.tokenizer)
  messages, answers = [], []
  for line in ("Hi", "there", "Hi there"):
    messages.append({"role": "user", "content": line})
    if len(ids := write(messages).ids) > 64 - NEW:
      messages = messages[2:]
      ids = write(messages).ids
    prompts, lengths = batching.encode(pair.tokenizer, [ids])
    result = dj.generate(
        jax.random.key(0), prompts, lengths, target=pair.target,
        target_params=pair.target_params,
        **{**ARGUMENTS, "eos_id": pair.eos_id})
    answers += batching.decode(pair.tokenizer, result, lengths)
    messages.append({"role": "assistant", "content": answers[-1]})
  assert out.out == "".join(f"{answer}\n" for answer in answers)
  assert len(re.findall(r"\[\d+ tokens read, \d+ written", out.err)) == 3


def test_what_does_not_fit_the_window(target, monkeypatch, capsys):
  converse(target, monkeypatch, ["Hi there " * 9] * 2)
  assert "first message and its answer are forgotten" in capsys.readouterr().err
  with pytest.raises(launch.UserError, match=r"with --max_new_tokens there is "
                     "room for 58"):
    converse(target, monkeypatch, ["Hi there " * 70])


@pytest.mark.parametrize("methods, values, message", [
    ([dj.methods.beam_search(2)], {}, "without --prompt: the text of method"),
    ([PLAIN], {"texts": "2"}, "--texts and --chat without --prompt: one text"),
    ([PLAIN], {"compare": "true"}, "--compare=True and --chat without"),
    ([PLAIN] * 2, {}, "--method=auto measures on one prompt")])
def test_what_is_refused(target, monkeypatch, methods, values, message):
  with pytest.raises(launch.UserError, match=message):
    converse(target, monkeypatch, [], methods, **values)
