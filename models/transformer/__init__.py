"""Transformer language models: configuration, forward, parameters."""

from models.transformer.decoder import (abstract_params, bidirectional_logits,
                                        causal_logits, Config,
                                        DTYPES, init, language_model,
                                        num_params, param_name,
                                        with_features)

__all__ = [
    "Config", "DTYPES", "abstract_params", "bidirectional_logits",
    "causal_logits", "init", "language_model", "num_params", "param_name",
    "with_features",
]
