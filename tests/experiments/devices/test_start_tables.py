"""Start tables: what is counted, and that it is drafted from."""

import zipfile

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation.drafters import trigram_table
from experiments.app import launch
from experiments.devices import (
    drafts, mesh as mesh_lib, model_pair, start_tables)
from models.text import tokenizers
from support import helpers

TEXTS = [np.array(text, np.int32) for text in ([1, 2, 1, 3, 1, 2, 4], [2, 4])]


def test_the_most_frequent_successors():
  """After 1 come 2 twice and 3; after 2 come 4 twice and 1; 4 ends texts."""
  table = start_tables.make("token_recycling", TEXTS, 5, 2)
  assert table.params.tolist() == [[-1, -1], [2, 3], [4, 1], [1, -1], [-1, -1]]


def test_shares_of_tri_grams():
  tokens, shares = start_tables.make("aded", [*TEXTS, np.array(
      [1, 2, 4], np.int32)], 5, 2, 101).params
  at = int(trigram_table.bucket(np.array(1), np.array(2), 101))
  assert tokens[at].tolist() == [4, 1]
  np.testing.assert_allclose(shares[at], [2 / 3, 1 / 3])
  assert (tokens >= 0).sum() == 5 and shares.sum() == pytest.approx(4)


def test_texts_of_suffix_decoding():
  result = start_tables.make("suffix", TEXTS, 5).params
  assert result.tolist() == [1, 2, 1, 3, 1, 2, 4, -1, 2, 4]


def opened(folders, path):
  return model_pair.open_pair(folders[0], str(path))


@pytest.mark.long
def test_a_table_of_the_text_itself_is_drafted_from(folders, tmp_path):
  """The target's own greedy text is accepted; control: without it is not."""
  pair = helpers.load_pair(folders[0], "")
  prompts, lengths = np.array([[5, 9]], np.int32), np.array([2])
  plain = dict(max_new_tokens=12, sampling=dj.Sampling(0.0))
  key = np.array([[0, 1]], np.uint32)

  def run(pair, method):
    return mesh_lib.generate(pair, key, prompts, lengths, method=method,
                             **plain)

  text = np.asarray(run(pair, dj.methods.autoregressive()).tokens[0])
  for kind, method in (
      ("token_recycling", dj.methods.token_recycling((1, 1), 1)),
      ("aded", dj.methods.aded(2, 2, 1, 64))):
    path = tmp_path / f"{kind}.npz"
    start_tables.save(path, start_tables.make(kind, [text], 270, 1, 64),
                      pair.tokenizer)
    table = start_tables.load(str(path), pair.tokenizer)
    started = pair._replace(start=table)
    model_pair.check(method, started, 2, 12, dj.Sampling(0.0))
    result, other = run(started, method), run(pair, method)
    np.testing.assert_array_equal(result.tokens, other.tokens)
    assert result.stats.target_calls[0] < other.stats.target_calls[0]
    assert model_pair.fingerprint(started) != model_pair.fingerprint(pair)


_TOKENS = np.zeros((4, 2), np.int32)
_SHARES = np.zeros((4, 2), np.float32)


@pytest.mark.parametrize("kind, arrays, message", [
    ("suffix", [], r"arrays are \(none\); it needs 1-D int32"),
    ("suffix", [_TOKENS], "arrays are 2-D int32; it needs 1-D int32"),
    ("suffix", [np.zeros(4)], "arrays are 1-D float64"),
    ("suffix", [np.zeros(0, np.int32)], "0 tokens are not all of -1"),
    ("suffix", [np.full(4, 270, np.int32)], r"not all of -1 \(none\) to 269"),
    ("token_recycling", [_TOKENS - 2], "8 tokens are not all of -1"),
    ("token_recycling", [_TOKENS > 0], "arrays are 2-D bool"),
    ("token_recycling", [_TOKENS.astype(complex)], "arrays are 2-D complex128"),
    ("aded", [_SHARES, _TOKENS], "arrays are 2-D float32, 2-D int32; it needs"),
    ("aded", [_TOKENS, _SHARES + np.nan], "shares must be 0 to 1"),
    ("aded", [_TOKENS, _SHARES[:1]], "shares must be 0 to 1, one for each")])
def test_wrong_arrays(folders, tmp_path, kind, arrays, message):
  path, tokenizer = tmp_path / "table.npz", tokenizers.load(folders[0])
  start_tables.save(path, start_tables.StartTable(kind, arrays), tokenizer)
  with pytest.raises(ValueError, match=message):
    start_tables.load(str(path), tokenizer)


def test_an_array_that_claims_more_than_there_is_memory(folders, tmp_path):
  path, tokenizer = tmp_path / "table.npz", tokenizers.load(folders[0])
  start_tables.save(path, start_tables.StartTable("suffix", ()), tokenizer)
  with zipfile.ZipFile(path, "a") as archive, archive.open("0.npy", "w") as f:
    np.lib.format.write_array_header_1_0(f, {
        "descr": "<i4", "fortran_order": False, "shape": (1 << 40,)})
  with pytest.raises(ValueError, match="is not a start table"):
    start_tables.load(str(path), tokenizer)


def test_wrong_tables_are_user_errors(folders, tmp_path):
  tokenizer = tokenizers.load(folders[0])
  table = start_tables.make("token_recycling", TEXTS, 270, 2)
  path, broken, foreign, beams = (tmp_path / f"{x}.npz" for x in (
      "table", "broken", "foreign", "beams"))
  start_tables.save(path, table, tokenizer)
  broken.write_text("no archive")
  start_tables.save(foreign, table, tokenizers.train(["a b"] * 2, 270))
  start_tables.save(beams, table._replace(kind="beams"), tokenizer)
  pair = opened(folders, path)
  assert pair.draft is None and not pair.drafts.types(pair.source)
  recycling = dj.methods.token_recycling((2,), 3)
  start_tables.check_used(pair.start, [dj.methods.autoregressive(), recycling])
  for message, call, *arguments in (
      ("table of token_recycling, and not of aded", start_tables.check_used,
       pair.start, [dj.methods.aded(2, 2)]),
      (r"table.npz', method token_rec.* \(270, 2\).*\[V, K\]=\(270, 3\)",
       model_pair.check, recycling, pair, 2, 4, dj.Sampling()),
      ("is a start table, .* --method=rsd_s needs a draft model",
       drafts.parse(path).for_methods, "rsd_s", [dj.methods.rsd_s(2, 2)],
       folders[0]),
      ("No such file", opened, folders, tmp_path / "missing.npz"),
      ("is not a start table", opened, folders, broken),
      ("with another tokenizer", opened, folders, foreign),
      ("table of beams: one of token_", opened, folders, beams)):
    with pytest.raises(launch.UserError, match=message):
      call(*arguments)
