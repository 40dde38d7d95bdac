"""Tests of heads that draft by their own states, against numpy."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from models.huggingface import convert, heads, tensor_files
from support import (
    head_reference as reference, published_heads as hf,
    regressive_head_reference as regressive, tiny_models as tiny)

_TARGET, _DIM, _VOCAB = hf.TARGET, hf.DIM, hf.VOCAB


@pytest.mark.long
def test_fspad(tmp_path, target):
  shapes = {"fc.fc.weight": (_DIM, 2 * _DIM), "fc.fc.bias": (_DIM,),
            "fc.post_attention_layernorm.weight": (_DIM,),
            "fc.mlp.gate_proj.weight": (24, _DIM),
            "fc.mlp.up_proj.weight": (24, _DIM),
            "fc.mlp.down_proj.weight": (_DIM, 24), **hf.layer("layers.0"),
            "layers.0.mlp.down_proj.weight": (2 * _DIM, 24)}
  loaded, w = hf.loaded(tmp_path / "head", {
      **hf.FIELDS, "model_type": "llama",
      "architectures": ["LlamaForCausalLM"]}, hf.drawn(shapes))
  read, table, output = hf.text_before(loaded, target.params)

  def logits(drafts):
    hidden = read
    for count in range(len(drafts) + 1):
      out, made = regressive.fspad(w, table[hf.after(drafts[:count])], hidden,
                                   hf.SIZES)
      hidden = np.concatenate([hidden, made[-1:]])
    return out[-1] @ output.T

  hf.check_chain(hf.drafted(loaded, target.params), logits)


_MTP = {
    "deepseek": ("model.layers.2.enorm", "model.layers.2.hnorm",
                 "model.layers.2.eh_proj", "model.layers.2.shared_head.norm",
                 "model.layers.2"),
    "qwen": ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc",
             "mtp.norm", "mtp.layers.0"),
    "mimo": ("model.mtp_layers.0.token_layernorm",
             "model.mtp_layers.0.hidden_layernorm",
             "model.mtp_layers.0.input_proj",
             "model.mtp_layers.0.final_layernorm", "model.mtp_layers.0")}


def module(name):
  """Tensors of a next-token module."""
  *norms, projection, last, prefix = _MTP[name]
  shapes = {f"{x}.weight": (_DIM,) for x in (*norms, last)} | {
      f"{projection}.weight": (_DIM, 2 * _DIM),
      f"{prefix}.input_layernorm.weight": (_DIM,), **hf.layer(prefix)}
  if name == "deepseek":
    shapes |= {f"{prefix}.shared_head.head.weight": (_VOCAB, _DIM),
               f"{prefix}.embed_tokens.weight": (_VOCAB, _DIM)}
  return hf.drawn(shapes)


@pytest.mark.parametrize("name", _MTP)
def test_mtp(tmp_path, target, name):
  """In the target's own folder, which is no head and loads as before."""
  convert.to_hf(tmp_path / "own", _TARGET, target.params)
  own = {key: x.read() for key, x in tensor_files.tensors(
      tmp_path / "own").items()}
  fields = json.loads((tmp_path / "own" / "config.json").read_text())
  folder = hf.write(tmp_path / "target",
                    {**fields, "num_nextn_predict_layers": 1},
                    own | module(name))
  assert not heads.is_head(folder)
  jax.tree.map(np.testing.assert_array_equal, convert.from_hf(folder)[1],
               target.params)
  loaded = heads.load(folder, _TARGET)
  w, own = hf.as_numpy(module(name)), hf.as_numpy(target.params)
  read, = hf.features(target.params, loaded.kept)
  if name != "mimo":  # Whose module reads the state before the last norm.
    read = reference.rms(read, own["norm"]["scale"], _TARGET.norm_eps)
  sizes = {**hf.SIZES, "eps": _TARGET.norm_eps}

  def layers(tokens, hidden):
    embeddings = own["embedding"][tokens]
    if name == "mimo":
      embeddings[0] = 0
    return reference.mtp(w, _MTP[name], embeddings, hidden, sizes,
                         name == "mimo")

  hf.check_recurrent(loaded, target.params, read, layers,
                     lambda x: x @ own["head"].T)


@pytest.mark.cases(1)
@pytest.mark.parametrize("arch", ["mlp", "prefix-mlp"])
def test_hydra(tmp_path, target, arch):
  step, last, shapes = 1, "", {}
  if arch == "prefix-mlp":
    prefix, step, last = "prefix_embeding_layer", 2, ".1"
    shapes = {f"{prefix}.norm.weight": (_DIM,),
              f"{prefix}.embed_tokens.weight": (_VOCAB, _DIM),
              f"{prefix}.layers.0.input_layernorm.weight": (_DIM,),
              **hf.layer(f"{prefix}.layers.0")}
  for i in range(hf.DEPTH):
    for j, inputs in ((0, (i + 2) * _DIM), (1, _DIM)):
      name = f"hydra_mlp.{i}.{step - 1 + step * j}"
      parts = ["linear"] if j else ["linear", "res_connection"]
      for part in parts:
        shapes |= {f"{name}.{part}.weight": (_DIM, inputs),
                   f"{name}.{part}.bias": (_DIM,)}
    shapes |= {f"hydra_lm_head.{i}{last}.weight": (_VOCAB, _DIM),
               f"hydra_lm_head.{i}{last}.bias": (_VOCAB,)}
  fields = {"hydra_num_heads": hf.DEPTH, "hydra_num_layers": 2,
            "hydra_head_arch": arch, "grounded_heads": True}
  folder = tmp_path / "head"
  loaded, w = hf.loaded(folder, fields, hf.drawn(shapes),
                        "hydra_lm_head.safetensors")
  read, table, _ = hf.text_before(loaded, target.params)
  if arch == "prefix-mlp":
    read = regressive.layers(
        w, (f"{prefix}.layers.0",), f"{prefix}.norm.weight", read,
        hf.SIZES | {"eps": _TARGET.norm_eps})

  def logits(drafts):
    return regressive.hydra(w, len(drafts), read[-1],
                            table[hf.after(drafts)][len(read) - 1:], step, last)

  hf.check_chain(hf.drafted(loaded, target.params), logits)
  hf.write(folder, {**fields, "grounded_heads": False}, {})
  with pytest.raises(ValueError, match="grounded_heads=False is not supported"):
    heads.load(folder, _TARGET)


def test_clover2(tmp_path, target):
  shapes = {f"clover_{name}.weight": (_DIM,) for name in ("norm", "head_norm")}
  shapes |= {"clover_embed_tokens.weight": (_VOCAB, _DIM),
             "lm_head.weight": (_VOCAB, _DIM)}
  parts = [(f"rnn{end}.{part}", _DIM) for end in ("", "2") for part in "qkv"]
  for name, inputs in (("", _DIM), ("2", 2 * _DIM), *parts):
    name = f"clover_head_mlp{f'_{name}' if '.' in name else name}"
    shapes |= {f"{name}.weight": (_DIM, inputs), f"{name}.bias": (_DIM,)}
  for end in ("", "2"):
    shapes[f"clover_head_mlp_rnn{end}.input_layernorm.weight"] = (_DIM,)
  for i in range(2):
    shapes |= {f"layers.{i}.input_layernorm.weight": (_DIM,),
               **hf.layer(f"layers.{i}")}
  # The base of the rotation is not that of the config.
  loaded, w = hf.loaded(tmp_path / "head", {
      **hf.FIELDS, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "rope_theta": 5e5, "clover": {"num_heads": 5, "num_layers": 2}},
                        hf.drawn(shapes))
  _, _, output = hf.text_before(loaded, target.params)
  read = hf.features(target.params, loaded.kept)[0]
  table = w["clover_embed_tokens.weight"]

  def logits(drafts):
    return regressive.clover2(w, read, table[hf.after(drafts)], len(drafts),
                              hf.SIZES) @ output.T

  hf.check_chain(hf.drafted(loaded, target.params), logits)


@pytest.mark.long
def test_chimera(tmp_path, target):
  torch = pytest.importorskip("torch")
  name = "fast_layer1.0"
  shapes = {"trimlp.0.linear.weight": (3 * _DIM, 3 * _DIM),
            "trimlp.0.linear.bias": (3 * _DIM,),
            "trimlp.1.weight": (_DIM, 3 * _DIM),
            f"{name}.input_layernorm.weight": (_DIM,), **hf.layer(name),
            **{f"chimera_head.{i}.0.weight": (_VOCAB, 2 * _DIM)
               for i in range(hf.DEPTH)}}
  w = hf.drawn(shapes)
  (tmp_path / "config.json").write_text(json.dumps(
      {"chimera_num_heads": hf.DEPTH, "chimera_num_layers": 1}))
  for part in ("trimlp", "fast_layer1", "chimera_head"):
    torch.save({key.removeprefix(f"{part}."): torch.tensor(x)
                for key, x in w.items() if key.startswith(part)},
               tmp_path / f"{part}.pt")
  assert heads.is_head(tmp_path)
  loaded = heads.load(tmp_path, _TARGET)
  w, (read, table, _) = hf.as_numpy(w), hf.text_before(loaded, target.params)
  sizes = hf.SIZES | {"eps": _TARGET.norm_eps}
  hf.check_chain(
      hf.drafted(loaded, target.params), lambda drafts: regressive.chimera(
          w, read, table[hf.after(drafts)], len(drafts), sizes))


def test_mtp_that_does_not_fit(tmp_path):
  folder = hf.write(tmp_path / "head", {"architectures": ["Qwen3NextMTP"]},
                    module("qwen"))
  assert heads.is_head(folder)
  with pytest.raises(ValueError, match="target's, num_experts=5, is not supp"):
    heads.load(folder, tiny.MIXTRAL)
  with pytest.raises(ValueError, match="_proj.bias is missing"):
    heads.load(folder, dataclasses.replace(_TARGET, qkv_bias=True))


@pytest.mark.cases(1)
def test_p_eagle(tmp_path, target):
  shapes = {"fc.weight": (_DIM, 3 * _DIM), "norm.weight": (_DIM,),
            "lm_head.weight": (_VOCAB, _DIM), "mask_hidden": (1, 3 * _DIM),
            "layers.0.input_layernorm.weight": (_DIM,),
            "layers.0.hidden_norm.weight": (_DIM,),
            "layers.1.input_layernorm.weight": (_DIM,),
            **hf.layer("layers.0", 2 * _DIM), **hf.layer("layers.1")}
  loaded, w = hf.loaded(tmp_path / "head", {
      **hf.FIELDS, "architectures": ["LlamaForCausalLMEagle3"],
      "num_hidden_layers": 2, "ptd_token_id": 5}, hf.drawn(shapes))
  table = hf.as_numpy(target.params)["embedding"]
  read = np.concatenate(hf.features(target.params, loaded.kept), -1)

  def logits(drafts):
    # What has been drafted is not read.
    count = len(drafts)
    tokens = np.concatenate([hf.TEXT[1:], [5] * count]).astype(int)
    features = np.concatenate([read, *[w["mask_hidden"]] * count])
    x = reference.eagle3(w, "layers.0", table[tokens],
                         features @ w["fc.weight"].T, hf.SIZES)
    x += reference.attention(
        w, "layers.1", reference.rms(
            x, w["layers.1.input_layernorm.weight"], 1e-6),
        np.arange(len(x)), reference.causal(len(x)), hf.SIZES)
    x += reference.feed_forward(w, "layers.1", reference.rms(
        x, w["layers.1.post_attention_layernorm.weight"], 1e-6))
    ended = reference.rms(x[-1], w["norm.weight"], 1e-6)
    return ended @ w["lm_head.weight"].T

  hf.check_chain(hf.drafted(loaded, target.params), logits)


@pytest.mark.cases(1)
def test_p_eagle_without_a_mask_token(tmp_path):
  folder = hf.write(tmp_path / "head", {
      **hf.FIELDS, "architectures": ["PEagleDraftModel"]}, hf.drawn(
          {"mask_hidden": (1, 3 * _DIM)}))
  with pytest.raises(ValueError, match="ptd_token_id.* names the mask token"):
    heads.load(folder, _TARGET)
