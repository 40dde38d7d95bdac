"""Meshes: the same text on any, and no device waits for more than it must."""

import dataclasses

from absl.testing import flagsaver
import jax
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from decoding_jax import kernels
from experiments.app import launch, method_specs
from experiments.devices import (
    memory_estimate, mesh as mesh_lib, mesh_shapes, model_pair)
from models import checkpoints, prompt_lookup, transformer
from models.transformer import sharding
from support import helpers, on_meshes, on_shards, tiny_models as tiny

ONE = tiny.LLAMA
# Forwards in a step of the loop: one a level, and the target's.
DRAFTS = 2


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory):
  results = helpers.found_by(on_meshes.__file__,
                             tmp_path_factory.mktemp("meshes"))
  assert results["texts"] == 8
  return results


@pytest.fixture(name="more", scope="module")
def _more(tmp_path_factory):
  return helpers.found_by(on_meshes.__file__, tmp_path_factory.mktemp("more"),
                          "more")


def assert_same(record, off=1e-5):
  assert record["same"] and record["same_counts"] and record["off"] < off


def counts(record):
  """What devices exchange."""
  return {k: v for k, v in record.items()
          if k not in ("same", "same_counts", "off")}


def test_same_tokens_as_on_one_device(runs):
  for name in "4x2", "2x4", "2x4 of 8 bits":
    assert_same(runs[name])
  assert runs["queued"]["same"] and runs["queued"]["same_counts"]
  assert runs["other"]  # Control: of 8 bits they are others.


def test_weights_of_8_bits(runs):
  """Scales of the embedding are one sum more a forward; experts have none."""
  whole = counts(runs["2x4"])
  assert counts(runs["2x4 of 8 bits"]) == {
      **whole, "all-reduce": whole["all-reduce"] + 1 + DRAFTS}


def exchanges_sums_of_layers_and_little_else(record, mesh, split_draft):
  """Two sums a layer, and one of the embedding; logits are not gathered.

  The target has experts, whose sums are one, with that of the one that all
  tokens use. Of a draft that all devices have, the vocabulary is split. Where
  the cache of another one is split by slots, devices exchange queries, and what
  each has made of its slots. Rows exchange nothing, not even whether they are
  done. What rules exchange is counted in bytes.
  """
  rows, split = map(int, mesh.split("x"))
  calls = {on_meshes.TARGET: (1, True), on_meshes.DRAFT: (DRAFTS, split_draft)}
  expected = {
      # A scan has its layers in the program once.
      "all-reduce": (split > 1) * sum(
          n * (1 + 2 * of_layers * (
              1 if config.scan_layers else config.num_layers))
          for config, (n, of_layers) in calls.items())}
  if split_draft and split > on_meshes.DRAFT.num_kv_heads:
    expected.update({"all-gather": 2 * DRAFTS, "reduce-scatter": DRAFTS})
  exchanged = {k: v for k, v in counts(record).items()
               if k not in ("bytes of rules", "whole")}
  assert exchanged == {k: v for k, v in expected.items() if v}
  # A draft whose heads are not split has its embedding on all devices.
  assert (record["whole"] == 0) == split_draft
  assert (record["bytes of rules"] > 0) == (split > 1)
  assert record["bytes of rules"] < 8 // rows * on_shards.MOST_BYTES


@pytest.mark.parametrize("mesh", ["4x2", "2x4"])
def test_devices_exchange_sums_of_layers_and_little_else(runs, mesh):
  exchanges_sums_of_layers_and_little_else(runs[mesh], mesh, True)


@pytest.mark.long
@pytest.mark.parametrize("mesh, split_draft", [("8x1", True), ("1x8", False)])
def test_the_same_of_one_axis(more, mesh, split_draft):
  assert_same(more[mesh])
  exchanges_sums_of_layers_and_little_else(more[mesh], mesh, split_draft)


@pytest.mark.long
def test_same_tokens_of_all_that_a_mesh_decodes(more):
  """A drafter with devices of its own has two groups, in which rows and layers
  are split; heads are on a target whose layers and logits are."""
  assert_same(more["pearl(2)"])
  assert_same(more["ssd(2, 2)"])
  # Layers with a state are split by heads, as their parameters are.
  for name in "states", "mamba":
    assert more[name]["same"] and more[name]["off"] < 1e-4
  assert more["states"]["whole"] == 0
  assert more["processed"]["same"] and more["looked up"]["same"]
  for name in "processed head", *on_meshes.HEADS:
    assert_same(more[name], 1e-4)
  # Control: without the processor they are others.
  assert more["processed head"]["other"]


@pytest.mark.long
def test_layers_that_are_scanned_exchange_what_unrolled_ones_do(runs, more):
  assert counts(more["scanned"]) == counts(runs["2x4 of 8 bits"])
  assert_same(more["scanned"])


@pytest.mark.long
def test_same_tokens_where_rows_share_a_prefix(runs, more):
  """It is kept by each index of "data", and exchanged by no device.

  The heads of the draft do not divide by those that share its layers.
  """
  shared, plain = more["shared"], runs["2x4"]
  assert_same(shared)
  sums = ("all-reduce", "all-gather", "all-to-all")
  assert [shared.get(x) for x in sums] == [plain.get(x) for x in sums]


@pytest.mark.long
@pytest.mark.parametrize("weights, split", [("dtype", "2x4"),
                                            ("int8", "2x4 of 8 bits")])
def test_experts_of_which_each_device_has_some_whole(runs, more, weights,
                                                     split):
  """They exchange as often, and as much, as those whose units are split."""
  assert_same(more[f"experts {weights}"])
  assert counts(more[f"experts {weights}"]) == counts(runs[split])


@pytest.mark.long
def test_a_draft_that_all_devices_have(runs, more):
  whole, split = more["2x4 of a whole draft"], runs["2x4"]
  assert_same(whole)
  # Two of the layers, which are scanned, a level.
  fewer = DRAFTS * 2
  assert whole["all-reduce"] == split["all-reduce"] - fewer
  assert not any("an expert" in name for name in whole)


@pytest.mark.long
@pytest.mark.parametrize("name", on_meshes.NO_MODEL)
def test_same_tokens_of_drafters_without_a_model(more, name):
  """What a row has learned, a start table and features are on all devices.

  Control: rows differ in how often they have a draft.
  """
  assert len(set(more[name]["tested"])) > 1
  assert_same(more[name], 1e-4)


def named_specs(config, size):
  params = transformer.abstract_params(config)
  specs = sharding.specs(config, size, params)
  return {transformer.param_name(path): spec
          for path, spec in jax.tree_util.tree_leaves_with_path(
              specs, is_leaf=lambda x: isinstance(x, PartitionSpec))}


ROWS, COLUMNS = PartitionSpec("model", None), PartitionSpec(None, "model")
WHOLE = PartitionSpec(None, None)
SPLIT, VECTOR = PartitionSpec("model"), PartitionSpec(None)


def test_parameters_by_name():
  specs = named_specs(tiny.OPT, 2)
  assert specs["embedding"] == specs["positions"] == WHOLE  # V = 13
  layer = {name.removeprefix("layers/layer_1/"): spec
           for name, spec in specs.items()}
  for name, spec in {
      "attention/query/kernel": ROWS, "attention/query/bias": SPLIT,
      "attention/key/kernel": ROWS, "attention/out/kernel": COLUMNS,
      "attention/out/bias": VECTOR, "attention_norm/scale": VECTOR,
      "feed_forward/up/kernel": ROWS, "feed_forward/up/bias": SPLIT,
      "feed_forward/down/kernel": COLUMNS,
      "feed_forward/down/bias": VECTOR}.items():
    assert layer[name] == spec, name


def test_scales_are_where_their_rows_are():
  specs = named_specs(dataclasses.replace(tiny.OPT, weights="int8"), 2)
  for name, values, scales in (("query", ROWS, ROWS), ("out", COLUMNS, WHOLE)):
    kernel = f"layers/layer_1/attention/{name}/kernel"
    assert specs[f"{kernel}/values"] == values
    assert specs[f"{kernel}/scales"] == scales


def test_a_parameter_without_mesh_axes_is_refused():
  params = {**transformer.abstract_params(ONE), "sinks": jax.ShapeDtypeStruct(
      (4,), "float32")}
  with pytest.raises(ValueError, match="parameter sinks has no mesh axes"):
    sharding.specs(ONE, 2, params)


def test_parameters_of_other_architectures():
  norms = {name: spec for name, spec in named_specs(tiny.GEMMA, 2).items()
           if name.endswith("/scale")}
  assert set(norms.values()) == {VECTOR} and len(norms) == 2 * 6 + 1
  # Scanned layers have an axis more.
  config = dataclasses.replace(ONE, scan_layers=True, vocab_size=14)
  specs = named_specs(config, 2)
  assert specs["layers/layer/feed_forward/gate/kernel"] == PartitionSpec(
      None, "model", None)
  assert specs["head"] == specs["embedding"] == ROWS
  # Experts are split each.
  specs = named_specs(tiny.MIXTRAL, 2)
  layer = "layers/layer_0/feed_forward"
  assert specs[f"{layer}/up/kernel"] == PartitionSpec(None, "model", None)
  assert specs[f"{layer}/down/kernel"] == PartitionSpec(None, None, "model")
  assert specs[f"{layer}/router/kernel"] == WHOLE
  # 2 heads of 4 channels are 8 rows, but no 4 devices have a head each.
  specs = named_specs(ONE, 4)
  assert specs["layers/layer_0/attention/value/kernel"] == WHOLE
  assert specs["layers/layer_0/attention/query/kernel"] == ROWS
  # One device has everything.
  assert set(named_specs(tiny.OPT, 1).values()) == {WHOLE, VECTOR}


@pytest.mark.parametrize("config, size, whole", [
    (dict(num_experts=8, hidden_dim=14336), 8, False),   # Mixtral 8x7B
    (dict(num_experts=128, hidden_dim=768), 8, True),    # Qwen3 30B A3B
    (dict(num_experts=128, hidden_dim=768), 2, False),
    (dict(num_experts=128, hidden_dim=1536), 8, True),   # Qwen3 235B A22B
    (dict(num_experts=64, hidden_dim=1024), 8, False),   # OLMoE
    (dict(num_experts=60, hidden_dim=1408), 4, True),    # Qwen1.5 MoE
    (dict(num_experts=60, hidden_dim=1408), 8, False),
    (dict(num_experts=8, hidden_dim=30), 8, True)])
def test_experts_are_whole_if_their_parts_fill_no_tiles(config, size, whole):
  config = dataclasses.replace(tiny.MIXTRAL, num_heads=8, num_kv_heads=8,
                               scan_layers=True, **config)
  sharding.check(config, size)
  specs = named_specs(config, size)
  layer = "layers/layer/feed_forward"
  assert specs[f"{layer}/up/kernel"] == PartitionSpec(
      None, *(("model", None) if whole else (None, "model")), None)
  assert specs[f"{layer}/down/kernel"] == PartitionSpec(
      None, *(("model", None, None) if whole else (None, None, "model")))


@pytest.mark.parametrize("shared_dim, rows, columns", [
    (6, ROWS, COLUMNS), (5, WHOLE, WHOLE)])
def test_an_expert_of_all_tokens_is_split_if_it_can_be(shared_dim, rows,
                                                       columns):
  specs = named_specs(dataclasses.replace(tiny.MIXTRAL, shared_dim=shared_dim),
                      2)
  layer = "layers/layer_0/feed_forward"
  assert specs[f"{layer}/shared/gate/kernel"] == rows
  assert specs[f"{layer}/shared/down/kernel"] == columns
  assert specs[f"{layer}/shared_gate/kernel"] == WHOLE


# Llama 68M, the paper's drafter of 115M, TinyLlama 1.1B.
@pytest.mark.parametrize("dim, hidden, layers, split", [
    (768, 3072, 2, False), (1024, 2816, 4, False), (2048, 5632, 22, True)])
def test_small_draft_models_are_not_split(dim, hidden, layers, split):
  config = dataclasses.replace(
      ONE, vocab_size=32000, dim=dim, num_layers=layers, num_heads=8,
      num_kv_heads=8, head_dim=dim // 8, hidden_dim=hidden, dtype="bfloat16")
  assert mesh_shapes.draft_size("auto", config, 8) == (8 if split else 1)
  assert mesh_shapes.draft_size("split", config, 8) == 8


def test_memory_of_a_draft_that_is_not_split(folders):
  """Control: the target's parameters are divided."""
  models = [(transformer.language_model(x), transformer.abstract_params(x))
            for x in (ONE, dataclasses.replace(ONE, num_layers=1))]
  pair = model_pair.ModelPair(*models[0], *models[1], None, 1.0)
  sizes = [memory_estimate.estimate(
      pair, [on_meshes.METHOD.sampled], 1, 4, 4,
      memory_estimate.Ways(layers=4, drafts=n)).weights for n in (0, 4, 1)]
  assert sizes[0] == sizes[1] < sizes[2] < 4 * sizes[0]
  pair, lookup = (model_pair.open_pair(folders[0], x)
                  for x in (folders[1], prompt_lookup.NAME))
  assert mesh_lib.partition(pair, (1, 2)).drafts == 1
  assert mesh_lib.partition(lookup, (1, 2)).drafts == 2


def test_memory_of_a_file_is_of_what_a_mesh_reads(tmp_path, capsys):
  """Its matrices are not as stored; the draft has the target's."""
  from support import gguf_writer  # Skips without its package.
  checkpoints.export(launch.model_folder("python-draft"), tmp_path / "hf")
  path = tmp_path / "model.gguf"
  gguf_writer.write(path, tmp_path / "hf", "llama", kind="Q8_0")
  pair = model_pair.open_pair(path, "layers:1", weights="stored", tokens=False)
  with flagsaver.as_parsed(mesh="data:1", draft_mesh="auto", force="false"):
    pair = mesh_lib.load(pair, [on_meshes.METHOD.sampled], 1, 1, 8, 8)
  mib = sum(x.nbytes for x in jax.tree.leaves(pair.target_params)) / 2**20
  assert f"(weights {mib:.2f}, " in capsys.readouterr().err


@pytest.mark.parametrize("value, shape", [
    ("data:4,model:2", (4, 2)), ("model:4,data:2", (2, 4)), ("data:8", (8, 1)),
    ("model:2", (1, 2))])
def test_sizes_of_a_mesh(value, shape):
  assert mesh_shapes.sizes(value, ONE, batch=8, count=8) == [shape]


@pytest.mark.parametrize("batch, count, shapes", [
    (8, 8, [(8, 1), (4, 2), (2, 4)]), (4, 8, [(4, 2), (2, 4)]),
    (1, 8, [(1, 4)]), (6, 4, [(2, 2), (1, 4)]), (7, 1, [(1, 1)])])
def test_auto_uses_as_many_devices_as_it_can(batch, count, shapes):
  assert mesh_shapes.sizes("auto", ONE, batch, count) == shapes


def test_auto_takes_the_first_mesh_that_has_the_memory(monkeypatch):
  config = dataclasses.replace(ONE, num_kv_heads=4)
  model = (transformer.language_model(config),
           transformer.abstract_params(config))
  pair = model_pair.ModelPair(*model, *model, None, 1.0)
  shapes = mesh_shapes.sizes("auto", config, batch=8, count=8)
  run = [on_meshes.METHOD.sampled], 8, 5, 9
  needs = [sum(memory_estimate.estimate(
      pair, *run, memory_estimate.Ways(model, data))) for data, model in shapes]
  assert needs == sorted(needs, reverse=True)
  ways = [mesh_lib.partition(pair, shape) for shape in shapes]
  for there, number in zip((*needs, 1), (*range(len(shapes)), -1)):
    monkeypatch.setattr(memory_estimate, "device_memory",
                        lambda _, there=there: there)
    assert mesh_lib.choose(pair, ways, *run) == number % len(shapes)


@dataclasses.dataclass(frozen=True)
class Device:
  """What there is not here; chips of TPUs have coordinates."""
  id: int
  platform: str
  device_kind: str
  slice_index: int = 0
  coords: tuple[int, int, int] = (0, 0, 0)
  core_on_chip: int = 0
  process_index: int = 0


def chips(kind, width, height, slices=1):
  """TPU slices; in the order of `jax.devices`, by machines of 2 x 2 chips."""
  places = sorted(((x, y, 0) for y in range(height) for x in range(width)),
                  key=lambda at: (at[1] // 2, at[0] // 2, at[1], at[0]))
  return [Device(i * len(places) + j, "tpu", kind, i, at)
          for i in range(slices) for j, at in enumerate(places)]


@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v6 lite"])
@pytest.mark.parametrize("shape", [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)])
@pytest.mark.parametrize("slices", [1, 2])
def test_chips_that_exchange_are_neighbours(kind, shape, slices):
  data, model = shape[0] * slices, shape[1]
  devices = chips(kind, 4, 4, slices)
  result = mesh_shapes.arranged(devices, (data, model))
  assert result.shape == (data, model)
  assert sorted(x.id for x in result.flat) == list(range(16 * slices))
  for row in result:
    assert len({x.slice_index for x in row}) == 1
    spans = np.ptp([x.coords for x in row], axis=0) + 1
    assert np.prod(spans) == model


@pytest.mark.parametrize("shape, machines", [
    ((2, 8), 1), ((4, 4), 1), ((16, 1), 1), ((1, 16), 2)])
def test_gpus_of_two_machines(shape, machines):
  """A machine is a slice of its own; a layer may be split over both."""
  devices = [Device(i, "gpu", "NVIDIA H100", i // 8) for i in range(16)]
  result = mesh_shapes.arranged(devices[::-1], shape)
  assert result.shape == shape and len(set(result.flat)) == 16
  assert {len({x.slice_index for x in row}) for row in result} == {machines}


@pytest.mark.parametrize("value, batch, cores, count", [
    ("data:2", 8, 4, 2), ("data:2,model:4", 8, 8, 8), ("data:8", 8, 2, 2),
    ("data:0", 8, 2, 1), ("auto", 8, 2, 2), ("auto", 6, 4, 3),
    ("auto", 1, 2, 1)])
def test_devices_of_a_cpu(value, batch, cores, count):
  """No more than cores, unless a user says so in other ways."""
  assert mesh_shapes.host_devices(value, ONE, batch, cores) == count


def test_a_large_model_keeps_all_cores_busy_by_itself():
  large = dataclasses.replace(ONE, dim=512, hidden_dim=512)
  assert mesh_shapes.host_devices("auto", large, 8, 2) == 1
  assert mesh_shapes.host_devices("data:2", large, 8, 2) == 2


@pytest.mark.parametrize("arguments, flags, count", [
    (["--mesh=data:1"], "", 1), ([], "", 1),
    (["--mesh=data:2"], "", min(2, kernels.cores())),
    (["--mesh=data:2"], "--xla_force_host_platform_device_count=3", 3)])
def test_flags_and_variables_settle_devices(python, arguments, flags, count):
  script = ("import sys, jax; from absl import flags; "
            "from experiments.devices import mesh; flags.FLAGS(sys.argv); "
            "mesh.join('python-target', 8); print(jax.device_count())")
  got = python("-c", script, *arguments, XLA_FLAGS=flags)
  assert got.output == f"{count}\n", got.errors


@pytest.mark.parametrize("value, message", [
    ("8", "--mesh=8: data:N, model:N, both with a comma between, or auto is"),
    ("data:2,data:2", "data:N, model:N"),
    ("rows:2", "data:N, model:N"),
    ("data:0", "data:N, model:N"),
    ("data:8,model:2", "16 devices are needed, there are 8"),
    ("data:3", "--mesh=data:3: data:3 does not divide the batch of 8 rows"),
    ("model:3", "--mesh=model:3: model:3 does not divide num_heads=4 and "
                "hidden_dim=24; it can be one of 1, 2, 4"),
])
def test_meshes_that_cannot_be(value, message):
  with pytest.raises(ValueError) as error:
    mesh_shapes.sizes(value, ONE, batch=8, count=8)
  assert message in str(error.value)


def test_roles_of_a_mesh():
  split = mesh_shapes.without_roles
  assert split("data:4") == (False, "data:4")
  assert split("role:2") == (True, "data:1")
  assert split("role:2,auto") == (True, "auto")
  for value in ("role:3", "role:2,role:2", "role"):
    with pytest.raises(ValueError, match=f"--mesh={value}: role:2 is needed"):
      split(value)
  sizes = lambda value, count: mesh_shapes.sizes(value, ONE, 8, count, groups=2)
  assert sizes("data:4", 8) == [(4, 1)] and sizes("auto", 4) == [(2, 1), (1, 2)]
  with pytest.raises(ValueError, match="--mesh=role:2,data:2: 4 devices are "
                     "needed, there are 2"):
    sizes("data:2", 2)


@pytest.mark.parametrize("method, draft, message", [
    ("rsd_s(2, 2)", "", "--method=pearl or ssd is needed"),
    ("pearl(2)", "window:16", "--draft=window:16 has no devices of its own"),
    ("ssd(2)", "lookup", "--draft=lookup has no devices of its own")])
def test_roles_need_a_draft_model(folders, method, draft, message):
  target, model = folders
  pair = model_pair.open_pair(target, draft or model)
  kinds = launch.decoders([method_specs.read(method)], [0.0])
  with flagsaver.as_parsed(mesh="role:2"):
    with pytest.raises(launch.UserError, match=message):
      mesh_lib.load(pair, kinds, 2, 2, 4, 4)
