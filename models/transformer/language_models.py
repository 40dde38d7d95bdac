"""The decoder as pure functions, and its parameters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib
from models.transformer import architecture
from models.transformer import decoder
from models.transformer import halves
from models.transformer import layer_stack
from models.transformer import parameters
from models.transformer import quantization
from models.transformer import recurrence


def language_model(config: architecture.Config) -> types.LanguageModel:
  """Returns the decoder as pure functions; equal configs give the same object.

  Its parameters come from `init` or `checkpoints`: the "params" collection of
  `decoder.Decoder`.
  """
  return _language_model(config, ())


def with_features(config: architecture.Config,
                  kept: tuple[int, ...]) -> types.LanguageModel:
  """Returns the decoder, which keeps outputs of some of its layers.

  They are `features[dj.HIDDEN_STATES]` of caches and blocks, a tuple of
  `[B, S or N, dim]` for each of these layers: the residual stream after it,
  before any norm of the output layer. The number `config.num_layers` is the
  input of the output layer, after the final norm, as the last of
  `hidden_states` in transformers. Drafters read them in `state.target_cache`
  and `seen.block`.

  Args:
    config: the architecture.
    kept: numbers of layers, from 0 on; and `config.num_layers`, see above.

  Returns:
    A `LanguageModel` with the parameters of `language_model`; equal arguments
    give the same object.

  Raises:
    ValueError: for a layer that there is not, or none.
  """
  kept = tuple(kept)
  if not kept or any(i not in range(config.num_layers + 1) for i in kept):
    raise ValueError(f"kept={kept}: some of the layers 0 to "
                     f"{config.num_layers - 1} are needed, or "
                     f"{config.num_layers} for the final norm's output.")
  return _language_model(config, kept)


def with_prompts(config: architecture.Config,
                 prompts: int) -> types.LanguageModel:
  """Returns the decoder with a table of more vectors than its embeddings.

  The ids V, V + 1, ... name its rows: a prompt may have them anywhere, so that
  prompts of vectors are prompts of tokens. So do -1, -2, ... where a method has
  them scored, as `methods.ppd` does with the trained prompt tokens of parallel
  prompt decoding (arXiv 2405.18628, section 3.1).

  Args:
    config: the architecture.
    prompts: how many rows there are.

  Returns:
    A `LanguageModel` whose parameters are `language_model`'s with
    `prompts [prompts, F]`, read as embeddings are; equal arguments give the
    same object.

  Raises:
    ValueError: for a number that is not positive.
  """
  if prompts < 1:
    raise ValueError(f"prompts={prompts}: at least 1 is needed.")
  return _language_model(config, (), prompts)


@functools.lru_cache(maxsize=None)
def _language_model(config, kept, prompts=0):
  """Returns a decoder that keeps features, with `prompts` prompt tokens."""
  module = decoder.Decoder(config, kept, prompts)

  def init_cache(batch, capacity):
    heads, dtype = config.num_kv_heads, jnp.dtype(config.dtype)
    axes = [()] * recurrence.recurrent(config)[:config.layers_ahead].count(
        False)
    if config.layers_ahead < config.num_layers:
      axes.append((config.num_layers - config.layers_ahead,))
    sizes = ((config.head_dim, capacity),
             (capacity, config.latent_dim or config.head_dim))
    widths = [config.dim if i < config.num_layers
              else config.embedding_dim or config.dim for i in kept]
    keys, values = (tuple(jnp.zeros((*layers, batch, heads, *size), dtype)
                          for layers in axes) for size in sizes)
    hidden = tuple(jnp.zeros((batch, capacity, width), dtype)
                   for width in widths)
    return types.Cache(keys, values, jnp.zeros(batch, jnp.int32),
                       {types.HIDDEN_STATES: hidden} if kept else {},
                       states=recurrence.init_states(config, batch))

  def forward(params, tokens, positions, cache, block, slot, mask, packed=None):
    return module.apply({"params": params}, tokens, positions, cache, block,
                        slot, mask, packed=packed)

  return types.LanguageModel(
      init_cache, forward, config.vocab_size, config.max_length,
      abstract_params=functools.partial(needed_params, config, prompts),
      halves=halves.of(_language_model, config, kept, prompts, forward),
      # A state belongs to a row, whatever its text begins with.
      reads_shared=not config.linear_key_heads,
      packs=not config.linear_key_heads, extra_ids=prompts)


def causal_logits(lm, params, tokens):
  """Returns logits `[B, T, V]` of whole texts `[B, T]`, without a cache.

  The model is one of `language_model`, or any other.
  """
  return causal_pass(lm, params, tokens)[0]


def causal_pass(lm, params, tokens):
  """Returns `causal_logits` and the block, such as its hidden states."""
  return cache_lib.whole_pass(lm, params, tokens)


def bidirectional_logits(lm, params, tokens):
  """Returns logits of whole texts `[B, T]` whose tokens all see each other.

  They are `[B, T, V]`, of the tokens themselves, not of those after them.
  """
  mask = jnp.ones((tokens.shape[1],) * 2, bool)
  return cache_lib.whole_pass(lm, params, tokens, mask)[0]


def init(key, config: architecture.Config) -> types.Params:
  """Returns random parameters, the "params" collection of a `Decoder`."""
  if config.scan_layers:
    return _init_scanned(key, config)
  kernels.prepare()  # Before anything is traced that may call them.
  # Shapes of activations are enough: only parameters are computed.
  tokens, cache, block, mask = _one_token(config)
  return decoder.Decoder(config).lazy_init(key, tokens, tokens, cache, block,
                                           0, mask)["params"]


@functools.partial(jax.jit, static_argnums=1)
def _init_scanned(key, config):
  """Returns parameters of scanned layers: one is traced, with many keys."""
  few = _few(config)
  params, last = init(key, few), f"layer_{few.num_layers - 1}"
  rest = {name: x for name, x in params["layers"].items() if name != last}
  keys = jax.random.split(key, config.num_layers - config.layers_ahead)
  # The compiler leaves out all else that is made for each key.
  stack = jax.vmap(lambda key: init(key, few)["layers"][last])(keys)
  return {**params, "layers": {**rest, "layer": stack}}


def abstract_params(config: architecture.Config) -> types.Params:
  """Returns the parameters of `init` as `jax.ShapeDtypeStruct`.

  Each is an object of its own, so that equal ones are told from shared ones.
  """
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
                      _abstract_params(config))


@functools.lru_cache(maxsize=64)
def _abstract_params(config):
  """`abstract_params`, which nobody may change. Tracing layers takes seconds,
  and most are alike: few are traced."""
  return layer_stack.abstract_layers(
      _traced_init(_few(config)), _alike(config), config.scan_layers)


def _alike(config):
  """Returns for each layer the number of the first one of its type."""
  types_ = [(i < config.dense_layers, recurrent)
            for i, recurrent in enumerate(recurrence.recurrent(config))]
  return [types_.index(type_) for type_ in types_]


def _few(config):
  """Returns the architecture with the first layers, as which all others are."""
  return dataclasses.replace(config, scan_layers=False,
                             num_layers=max(_alike(config), default=0) + 1)


@functools.lru_cache(maxsize=64)
def mesh_axes(config: architecture.Config) -> dict[str, tuple]:
  """Returns the axes of `parameters.declare` by `parameters.param_name`.

  Only unrolled layers are named, and of these the first ones: all others are
  like the last of them.
  """
  with parameters.declarations() as declared:
    _traced_init(_few(config), prompts=1)
  return {layer_stack.of_first_layer(name, config.dense_layers): axes
          for name, axes in declared.items()}


def _traced_init(config, prompts=0):
  """Returns the shapes of `init`, traced in this call."""
  kernels.prepare()
  tokens, cache, block, mask = _one_token(config)

  def init_params(key, tokens, cache, block, mask):
    # Not by `lazy_init`: it would take a trace apart in three times as long.
    return decoder.Decoder(config, prompts=prompts).init(
        key, tokens, tokens, cache, block, 0, mask)["params"]

  return jax.eval_shape(init_params, jax.random.key(0), tokens, cache, block,
                        mask)


def _one_token(config):
  """Returns the shapes of a token, an empty cache, its block and a mask."""
  tokens, mask = (jax.ShapeDtypeStruct((1, 1), jnp.int32),
                  jax.ShapeDtypeStruct((1, 1, 1), bool))
  cache = jax.eval_shape(lambda: language_model(config).init_cache(1, 1))
  return tokens, cache, jax.eval_shape(
      lambda x: cache_lib.init_block(x, 1), cache), mask


def needed_params(config: architecture.Config, prompts: int = 0):
  """Returns `LanguageModel.abstract_params` of a decoder with prompt tokens."""
  params = abstract_params(config)
  if config.weights == quantization.STORED:
    # Each matrix has the format of its file, whatever that is.
    params = jax.tree.map(
        lambda x: ... if quantization.is_matrix(x) else x, params,
        is_leaf=quantization.is_matrix)
  if prompts:
    width = config.embedding_dim or config.dim
    params["prompts"] = jax.ShapeDtypeStruct((prompts, width),
                                             jnp.dtype(config.dtype))
  return params
