"""One decoder for several families of published models.

A family is a set of values of `Config`; `models.huggingface` has them.
"""

import dataclasses

from models.transformer import latent_attention
from models.transformer import layers
from models.transformer import quantization
from models.transformer import rope

_POSITIONS = ("rope", "learned", "none")
_LINEAR_LAYERS = ("delta", "mamba2")
_ROUTERS = ("softmax", "sigmoid")
DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Config:
  """Architecture of a decoder."""
  vocab_size: int  # V
  dim: int  # Width of the residual stream
  num_layers: int  # Layers
  num_heads: int  # Query heads
  # Key/value heads; divides `num_heads`. 1 in latent attention.
  num_kv_heads: int
  # Channels of a head; in latent attention those that are rotated
  head_dim: int
  hidden_dim: int  # Width of the feed-forward layer, or of an expert
  max_length: int  # Positions; the size of the table if they are learned
  # Experts of a mixture; 0: one feed-forward layer for all tokens. A mixture
  # cannot be trained here.
  num_experts: int = 0
  experts_per_token: int = 0  # How many experts a token uses
  # Whether the weights of a token's experts are normalised to sum to one
  normalize_experts: bool = True
  # Width of an expert that all tokens use; 0: there is none
  shared_dim: int = 0
  shared_gate: bool = True  # Whether a gate scales the shared expert
  # "softmax"; or "sigmoid", whose experts are chosen with a trained correction
  # of each expert's score
  router: str = "softmax"
  # Groups of experts. A token uses experts of a few, see `groups_per_token`.
  # From 1 on scores are computed in float32; 0: in the type of activations.
  expert_groups: int = 0
  groups_per_token: int = 0  # How many groups a token may use
  # What the weights of a token's experts are multiplied by
  expert_scale: float = 1.0
  dense_layers: int = 0  # The first layers, which have no experts
  dense_dim: int = 0  # Width of the feed-forward layer of `dense_layers`
  # Channels of a token that all heads make keys and values of, see
  # `latent_attention`, which has the next three too; 0: there are none
  latent_dim: int = 0
  # Channels that queries are made of; 0: of the residual stream
  query_rank: int = 0
  plain_dim: int = 0  # Channels of a query head that are not rotated
  value_dim: int = 0  # Channels of a value
  # "rms", "rms_plus_one" (scales are stored less one) or "layer"
  norm: str = "rms"
  positions: str = "rope"  # "rope", "learned" or "none"
  # "swiglu" or "geglu", which are gated; "relu"; "gelu" (its tanh
  # approximation, as in "geglu") or "erf_gelu" (exact)
  feed_forward: str = "swiglu"
  # Whether all projections have biases; else the next three decide
  bias: bool = False
  qkv_bias: bool = False  # Whether query, key and value have biases
  # Whether the output projection of the attention has one
  out_bias: bool = False
  feed_forward_bias: bool = False  # Whether the feed-forward layer has biases
  tie_embeddings: bool = True  # Whether the output layer is the embedding
  # Outputs of each token, such as 1 of a reward model; 0: V logits
  outputs: int = 0
  norm_eps: float = 1e-5  # Added to the variance
  # Whether each query head and each key head is normalised
  qk_norm: bool = False
  # Whether all query heads together are normalised, and all key heads
  joint_qk_norm: bool = False
  # Whether the outputs of attention are multiplied by the sigmoid of a
  # projection
  attention_gate: bool = False
  # "delta" or "mamba2", see `gated_delta` and `mamba2`: layers with a state,
  # which are all but the ones of `full_every` and `attention_layers`. The next
  # five are of these layers.
  linear_layer: str = "delta"
  # Heads of queries and keys; of Mamba-2 groups. 0: all layers have attention.
  linear_key_heads: int = 0
  # Heads of values; a multiple of `linear_key_heads`
  linear_value_heads: int = 0
  # Channels of a head
  linear_key_dim: int = 0
  linear_value_dim: int = 0
  linear_conv: int = 0  # Tokens that the convolutions see
  # Norms after the residual sums, and none before the output layer
  post_norm: bool = False
  # Norms before attention and feed-forward layer, and of their outputs before
  # the residual sum
  sandwich_norm: bool = False
  # Norms of the outputs alone (OLMo 2, arXiv 2501.00656, section 3.2)
  reordered_norm: bool = False
  # Whether attention and feed-forward layer read the same residual stream, each
  # by its own norm
  parallel: bool = False
  # Factor of the outputs of attention and feed-forward layer before the sum
  residual_scale: float = 1.0
  # Width of embedding and output layer, if projections lie between them and the
  # residual stream; 0: `dim`, without projections
  embedding_dim: int = 0
  # What embeddings are multiplied by, rounded to the type
  embedding_scale: float = 1.0
  logit_divisor: float = 1.0  # What logits are divided by
  # Scores are divided by its square root; 0: by that of `head_dim`, in latent
  # attention with `plain_dim`
  query_scalar: float = 0
  # Cap of the scores, see `kernels.soft_cap`; 0: none
  attention_softcap: float = 0.0
  logit_softcap: float = 0.0  # Cap of the logits; 0: none
  # Positions that a token attends to, itself included; 0: all. Caches hold the
  # others too.
  window: int = 0
  # The last one of each group of this many layers attends to all positions, in
  # spite of the window or of layers with a state; 0: none does
  full_every: int = 0
  # Numbers of other layers that have attention among layers with a state
  attention_layers: tuple[int, ...] = ()
  # Whether queries and keys of layers that see all positions are rotated
  rope_full: bool = True
  # Whether channels 2 i and 2 i + 1 are rotated together, of latent attention;
  # else i and i + half of them
  rope_interleaved: bool = False
  # Share of the channels of a head that are rotated, the first ones
  rope_part: float = 1.0
  rope_theta: float = 10000.0  # Base of the rotary wavelengths
  # Base in layers with a window, which are then not scaled; 0: `rope_theta`
  rope_local_theta: float = 0.0
  rope_scaling: str = "none"  # One of `rope.KINDS`, see `rope.frequencies`
  # Factor of the scaling; of "longrope" the longest text in original lengths,
  # as in files of Hugging Face
  rope_factor: float = 1.0
  # Ends of the ramp of "llama3" and "yarn"
  rope_low_turns: float = 1.0
  rope_high_turns: float = 4.0
  # Of "llama3", "yarn" and "longrope", the length before it was scaled
  rope_original_length: float = 0.0
  # Of "yarn" and "longrope", what cosines and sines are multiplied by
  rope_gain: float = 1.0
  # Whether the ramp of "yarn" begins and ends at whole planes
  rope_truncate: bool = True
  # Of "longrope", tuples of the factor of each plane; `max_length` decides
  # which of them are used
  rope_short_factors: tuple[float, ...] = ()
  rope_long_factors: tuple[float, ...] = ()
  # One scanned layer instead of unrolled ones, but for `dense_layers`, which
  # compiles in constant time. Its parameters and caches are arrays with an axis
  # of layers in front. A TPU reads a layer where it lies; on CPUs and GPUs its
  # weights are copied in each forward.
  scan_layers: bool = False
  # The format of Hugging Face that it was read from, and is written in: a
  # `model_type`, which changes nothing that is computed
  family: str = "llama"
  dtype: str = "float32"  # Of parameters, activations and caches
  # "dtype"; or "bfloat16" or "int8" for the matrices of layers, the embedding
  # and the output layer, see `quantization`. Such a model cannot be trained.
  weights: str = quantization.DTYPE

  def __post_init__(self):
    for field, allowed in (("norm", layers.NORMS), ("positions", _POSITIONS),
                           ("feed_forward", layers.FEED_FORWARDS),
                           ("rope_scaling", rope.KINDS), ("router", _ROUTERS),
                           ("linear_layer", _LINEAR_LAYERS),
                           ("dtype", DTYPES),
                           ("weights", quantization.WEIGHTS)):
      if getattr(self, field) not in allowed:
        raise ValueError(
            f"transformer {field}={getattr(self, field)!r} is not one of "
            f"{sorted(allowed)}.")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f"transformer num_kv_heads={self.num_kv_heads} does not divide "
          f"num_heads={self.num_heads}.")
    if self.num_experts and not (
        0 < self.experts_per_token <= self.num_experts
        and layers.FEED_FORWARDS[self.feed_forward][1]):
      raise ValueError(
          f"transformer experts_per_token={self.experts_per_token}, "
          f"feed_forward={self.feed_forward!r}: 1 to "
          f"num_experts={self.num_experts} of a gated layer are needed.")
    if self.shared_dim and not self.num_experts:
      raise ValueError(f"transformer shared_dim={self.shared_dim} needs "
                       "num_experts.")
    if self.outputs and self.tie_embeddings:
      raise ValueError(f"transformer outputs={self.outputs} needs "
                       "tie_embeddings=False.")
    if self.weights == quantization.BFLOAT16 and self.dtype == "float16":
      raise ValueError(
          f"transformer weights={self.weights!r}, dtype={self.dtype!r}: "
          "float32 or bfloat16 is needed.")
    if self.outputs and self.weights != quantization.DTYPE:
      raise ValueError(
          f"transformer weights={self.weights!r}, outputs={self.outputs}: a "
          f"model without logits needs {quantization.DTYPE!r}.")
    for names in (("post_norm", "sandwich_norm", "reordered_norm"),
                  ("post_norm", "parallel"), ("qk_norm", "joint_qk_norm")):
      given = [f"{name}=True" for name in names if getattr(self, name)]
      if len(given) > 1:
        raise ValueError(f"transformer {' and '.join(given)}: only one of them "
                         "is allowed.")
    _check_linear(self)
    turned = self.rope_part * self.head_dim
    if self.positions == "rope" and not 2 <= turned <= self.head_dim:
      raise ValueError(
          f"transformer rope_part={self.rope_part}: of head_dim="
          f"{self.head_dim} channels 2 to {self.head_dim} can be rotated.")
    rope.check(self)
    _check_groups(self)
    _check_latent(self)

  def of_layer(self, number: int) -> "Config":
    """Returns what a layer is built by; the first ones have no experts."""
    if number >= self.dense_layers:
      return self
    return dataclasses.replace(
        self, num_experts=0, shared_dim=0, dense_layers=0, scan_layers=False,
        hidden_dim=self.dense_dim)

  @property
  def attention(self):
    """The module of attention in a layer."""
    return (latent_attention.LatentAttention if self.latent_dim
            else layers.Attention)

  @property
  def layers_ahead(self) -> int:
    """The first layers, which are no part of the scan where there is one."""
    return min(self.dense_layers if self.scan_layers else self.num_layers,
               self.num_layers)


def _check_groups(config):
  """Raises ValueError for experts that cannot be chosen as they should be."""
  groups, used = config.expert_groups, config.groups_per_token
  if groups and config.num_experts and (
      config.num_experts % groups or not 0 < used <= groups
      or config.experts_per_token > used * (config.num_experts // groups)
      or groups > 1 and config.router == "sigmoid"
      and config.num_experts < 2 * groups):
    raise ValueError(
        f"transformer expert_groups={groups}, groups_per_token={used}: groups "
        f"that divide num_experts={config.num_experts}, of which a token uses "
        f"enough for experts_per_token={config.experts_per_token}, are needed"
        + (", each of two experts or more." if config.router == "sigmoid"
           else "."))
  if config.dense_layers and not (config.num_experts and config.dense_dim):
    raise ValueError(
        f"transformer dense_layers={config.dense_layers}: "
        f"num_experts={config.num_experts} and dense_dim={config.dense_dim} of "
        "at least 1 are needed.")


def _check_latent(config):
  """Raises ValueError for fields that the type of attention cannot have."""
  if not config.latent_dim:
    _check_unread(config, ("query_rank", "plain_dim", "value_dim",
                           "rope_interleaved"), "latent_dim")
    return
  needed = {"num_kv_heads": config.num_kv_heads == 1,
            "positions": config.positions == "rope",
            "value_dim": config.value_dim > 0,
            "rope_part": config.rope_part == 1,
            **{name: not getattr(config, name) for name in (
                "bias", "qkv_bias", "out_bias", "qk_norm", "joint_qk_norm",
                "attention_gate", "window")}}
  for name, holds in needed.items():
    if not holds:
      raise ValueError(
          f"transformer {name}={getattr(config, name)!r}: latent attention "
          f"(latent_dim={config.latent_dim}) needs num_kv_heads=1, value_dim, "
          "rotary positions of all of head_dim, and neither biases, norms of "
          "heads, gates nor windows.")


def _check_unread(config, names, needed):
  """Raises ValueError for fields that nothing reads where `needed` is 0."""
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if field.name in names and value != field.default:
      raise ValueError(f"transformer {field.name}={value!r}, {needed}=0: no "
                       f"layer reads it without {needed}.")


def _check_linear(config):
  """Raises ValueError unless layers with a state can be as they are given."""
  if not config.linear_key_heads:
    _check_unread(config, (
        "linear_layer", "linear_value_heads", "linear_key_dim",
        "linear_value_dim", "linear_conv", "attention_layers"),
                  "linear_key_heads")
    return
  if not (config.linear_value_heads > 0 and config.linear_conv > 1
          and not config.linear_value_heads % config.linear_key_heads
          and config.linear_key_dim > 0 and config.linear_value_dim > 0):
    raise ValueError(
        f"transformer linear_key_heads={config.linear_key_heads}, "
        f"linear_value_heads={config.linear_value_heads}, linear_key_dim="
        f"{config.linear_key_dim}, linear_value_dim={config.linear_value_dim}, "
        f"linear_conv={config.linear_conv}: a multiple of the first, positive "
        "channels, and at least 2 tokens are needed.")
  for name in ("window", "scan_layers"):
    if getattr(config, name):
      raise ValueError(f"transformer {name}={getattr(config, name)!r}, "
                       f"linear_key_heads={config.linear_key_heads}: layers "
                       "with a state go with neither windows nor a scan.")
