"""Transformer language models: configuration, forward, parameters."""

from models.transformer.decoder import (abstract_params, bidirectional_logits,
                                        causal_logits, Config, DTYPES, init,
                                        language_model, num_params, param_name,
                                        with_features, with_prompts)
from models.transformer.early_exit import early_exit, first_layers

__all__ = [
    "Config", "DTYPES", "abstract_params", "bidirectional_logits",
    "causal_logits", "early_exit", "first_layers", "init", "language_model",
    "num_params", "param_name",
    "with_features", "with_prompts",
]
