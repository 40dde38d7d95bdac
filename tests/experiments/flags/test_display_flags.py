"""Completions that are shown while they grow, or beside others."""

import functools
import re
import types

from absl.testing import flagsaver
import jax
import numpy as np
import pytest
import tokenizers as library

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import model_pair
from experiments.flags import constraint_flags, display_flags
from experiments.timing import stopwatch
from models.text import tokenizers
from support import helpers, tiny_models as tiny

pytestmark = pytest.mark.usefixtures("parsed_flags")
METHOD = dj.methods.speculative(2)
TREES = dj.methods.rsd_s(2, 1)
TREE_ARGUMENTS = dict(method=TREES, max_new_tokens=8, eos_id=None,
                      sampling=dj.Sampling())
PROMPTS, LENGTHS = tiny.PROMPTS[:1], tiny.LENGTHS[:1]
# Parts of two characters, one of them with a byte that fits nowhere.
_BYTES = [f"<0x{byte:02X}>" for byte in (0xC3, 0xA9, 0xE6, 0xB7, 0xB1, 0xFF)]


def fallback():
  """A tokenizer of the SentencePiece kind, without its dummy prefix."""
  names = ["<s>", "\u2581", "\u2581cat", "s", "é", *_BYTES]
  tokenizer = library.Tokenizer(library.models.BPE(
      {name: i for i, name in enumerate(names)}, [], byte_fallback=True))
  tokenizer.add_special_tokens(["<s>"])
  parts = library.decoders
  tokenizer.decoder = parts.Sequence([
      parts.Replace("\u2581", " "), parts.ByteFallback(), parts.Fuse(),
      parts.Strip(" ", 1, 0)])
  return tokenizer


def words():
  """A tokenizer whose tokens know whether they begin a word."""
  tokenizer = library.Tokenizer(library.models.WordPiece(
      {name: i for i, name in enumerate(["a", "##b", ".", "do", "n't", "é"])},
      unk_token="a"))
  tokenizer.decoder = library.decoders.WordPiece()
  return tokenizer


TOKENIZERS = {"bytes": lambda: tokenizers.train(["é 深い"] * 3, 264),
              "fallback": fallback, "words": words}


def begins(text, ids, tokenizer, settled):
  """Whether all that was settled on the way is what the text begins with."""
  return all(text.startswith(settled(tokenizer, ids[:i]))
             for i in range(len(ids) + 1))


@pytest.mark.parametrize("prompt", [0, 3])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_is_settled_stays(name, prompt):
  tokenizer = TOKENIZERS[name]()
  rng, size = np.random.default_rng(0), tokenizers.size(tokenizer)
  held = 0
  for _ in range(300):
    before, ids = (rng.integers(0, size, n).tolist() for n in (prompt, 12))
    settled = functools.partial(tokenizers.decode_stable_prefix, prompt=before)
    text = tokenizers.decode(tokenizer, ids, before)
    assert begins(text, ids, tokenizer, settled)
    held += len(text) - len(settled(tokenizer, ids))
  assert held < 300 * 6


@pytest.mark.parametrize("name", ["bytes", "fallback"])
def test_control_what_is_decoded_does_not_stay(name):
  tokenizer = TOKENIZERS[name]()
  rng, size = np.random.default_rng(0), tokenizers.size(tokenizer)
  runs = [rng.integers(0, size, 12).tolist() for _ in range(300)]
  decode = lambda tokenizer, ids: tokenizer.decode(ids)
  assert not all(begins(tokenizer.decode(ids), ids, tokenizer, decode)
                 for ids in runs)


@pytest.mark.parametrize("text", ["def f(x):\n  ", "é", "深い木 🌳"])
def test_a_whole_text_is_settled(text):
  tokenizer = TOKENIZERS["bytes"]()
  ids = tokenizer.encode(text).ids
  assert tokenizers.decode_stable_prefix(tokenizer, ids) == text
  assert tokenizers.decode_stable_prefix(tokenizer, ids[:-1]) in text[:-1]


@pytest.fixture(name="pair")
def _pair(folders):
  return helpers.load_pair(*folders)


def decoded(pair, new=12, eos_id=(0,), method=METHOD):
  """Arguments of `stream` after the pair, and the text to expect."""
  arguments = dict(method=method, max_new_tokens=new, eos_id=eos_id,
                   sampling=dj.Sampling())
  models = model_pair.for_method(pair, method)
  keys = jax.random.split(jax.random.key(0), 1)
  out = dj.generate(keys, PROMPTS, LENGTHS, target=pair.target,
                    target_params=pair.target_params, draft=models.draft,
                    draft_params=models.draft_params, **arguments)
  return (keys, PROMPTS, LENGTHS), arguments, pair.tokenizer.decode(
      display_flags.tokens(out, LENGTHS))


@pytest.mark.cases(1)
@pytest.mark.parametrize("values, method", [
    ({}, METHOD), ({"stop": ["e", "a", "t", " "]}, METHOD),
    ({}, dj.methods.token_recycling((2,), 2))],
                         ids=["plain", "stop", "no draft model"])
def test_the_text_is_that_of_generate(pair, capsys, monkeypatch, values,
                                      method):
  with flagsaver.as_parsed(**values):
    pair = constraint_flags.apply(pair._replace(eos_id=(0,)), 8, 8)
    arrays, arguments, expected = decoded(pair, method=method)
    parts = []
    monkeypatch.setattr("builtins.print", lambda *args, file=None, **_: (
        file or parts.extend(args)))  # Notes go to stderr.
    out, took = display_flags.stream("x = ", pair, *arrays, **arguments)
  assert "".join(parts) == "x = " + expected
  assert "s with compilation" in took
  # The prompt, a part a step, and the rest.
  assert len(parts) == int(out.steps) + 2 and len(set(parts)) > 2
  assert all("\ufffd" != part[-1:] for part in parts[:-1])


def test_a_pause_of_the_compiler_is_not_in_the_rate():
  took = display_flags.took([0.0, 3.0, 3.1, 3.2, 7.2, 7.3, 7.3],
                            [5, 7, 9, 11, 13, 13])
  assert took == "20.0 tokens/s after the first step, 7.3 s with compilation"
  took = display_flags.took([0.0, 3.0, 3.1], [5, 5])
  assert took == "3.1 s with compilation"


def test_logits_that_are_nan_are_told(pair, capsys):
  wrong = jax.tree.map(lambda x: x * np.nan, pair.target_params)
  arrays, arguments, _ = decoded(pair)
  with pytest.raises(launch.UserError, match="NaN"):
    display_flags.stream("x", pair._replace(target_params=wrong), *arrays,
                         **arguments)
  assert capsys.readouterr().out == "x"


def test_methods_whose_text_does_not_grow():
  greedy = dj.Sampling(temperature=0.0)
  for method in dj.methods.beam_search(2), dj.methods.diverse_beam_search(2, 2):
    display_flags.check([method], greedy)
    with flagsaver.as_parsed(stream="true"):
      display_flags.check([METHOD, dj.methods.autoregressive()], greedy)
      with pytest.raises(launch.UserError, match="--stream: the text of method "
                         ".*beam_sea.* is only known at its end"):
        display_flags.check([METHOD, method], greedy)


def test_on_a_mesh_nothing_is_told(pair):
  pair = pair._replace(mesh=jax.make_mesh((1,), ("data",)))
  with pytest.raises(launch.UserError, match="--stream and --mesh: "):
    display_flags.stream("x", pair, None, PROMPTS, LENGTHS)
  with pytest.raises(launch.UserError, match="--show_tree and --mesh"):
    display_flags.show_trees(pair, None, None, None)


def test_trees_of_each_step(pair, capsys, tmp_path):
  """The text of `generate`; its tokens are the marked ones, in order."""
  keys = jax.random.split(jax.random.key(0), 1)
  arrays = keys, tiny.PROMPTS[:1], tiny.LENGTHS[:1]
  image = tmp_path / "trees.svg"
  with flagsaver.as_parsed(show_tree="true", tree_svg=str(image)):
    assert display_flags.shows_trees()
    display_flags.check([TREES], dj.Sampling())
    out, took = display_flags.show_trees(pair, *arrays, **TREE_ARGUMENTS)
  helpers.check_same(out, dj.generate(
      *arrays, target=pair.target, target_params=pair.target_params,
      draft=pair.draft, draft_params=pair.draft_params, **TREE_ARGUMENTS))
  printed = capsys.readouterr().out
  steps = re.findall(r"^step (\d+): (\d) drafts? accepted, (\d) tokens?",
                     printed, re.M)
  assert len(steps) == int(out.steps) and took == f"{len(steps)} steps"
  assert [int(x) for x, *_ in steps] == [*range(1, len(steps) + 1)]
  assert sum(int(x) for *_, x in steps) == 8
  marked = re.findall(r"^[*+] +('.*?'|\".*?\")(?:  |$)", printed, re.M)
  assert marked == [repr(pair.tokenizer.decode([x], skip_special_tokens=False))
                    for x in tiny.texts(out, arrays[2])[0]]
  assert image.read_text("utf-8").count("Step ") == len(steps)


@pytest.mark.parametrize("values, method, message", [
    (dict(show_tree="true"), dj.methods.beam_search(2),
     r"--show_tree: method beam_search\(2\) drafts no tree"),
    (dict(tree_svg="x.svg"), dj.methods.pearl(2),
     r"--tree_svg: method pearl\(2\) drafts no tree"),
    (dict(show_tree="true", stream="true"), TREES,
     "--show_tree and --stream: either"),
    (dict(tree_svg="/no/such/x.svg"), TREES,
     "--tree_svg=/no/such/x.svg: there is no such folder")],
                         ids=["beams", "pearl", "stream", "folder"])
def test_what_cannot_be_shown(values, method, message):
  with flagsaver.as_parsed(**values):
    with pytest.raises(launch.UserError, match=message):
      display_flags.check([method], dj.Sampling())


def test_both_are_decoded_in_turn_and_medians_compared(monkeypatch, capsys):
  calls, seconds = [], {"plain": [8.0, 2.0, 1.0], "drafted": [1.0, 0.5, 4.0]}

  def decoder(name):
    def decode():
      calls.append(name)
      return types.SimpleNamespace(
          stats=types.SimpleNamespace(emitted=np.array([8])))
    return decode

  def decoded(decode):
    out = decode()
    return out, seconds[calls[-1]].pop(0)

  monkeypatch.setattr(stopwatch, "decoded", decoded)
  line = display_flags.compare("speculative(2)", decoder("drafted"),
                               decoder("plain"))
  assert calls == ["plain", "drafted"] * 4  # The first of each compiles.
  assert line == ("autoregressive 4.0 tokens/s, speculative(2) 8.0 tokens/s: "
                  "2.00 times as fast")
  shown = capsys.readouterr().err
  assert "compiling plain decoding" in shown
  assert "comparing with plain decoding" in shown
