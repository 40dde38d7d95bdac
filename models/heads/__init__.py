"""Heads on the target's features: drafters in place of a draft model.

A file is an architecture. Functions of the same name take the same arguments:

    head(config, target)       the `Head`, whose parameters are those of `init`
    init(key, config, target)  random parameters
    predicted, unrolled, rounds(config, target, params, target_params, features,
                               tokens, ...)  what it predicts, for training

`config` is a `Config` of the file. `target` is the `transformer.Config` of the
target, which keeps the output of its last layer unless another one is named, as
`transformer.with_features(target, (target.num_layers - 1,))` does; `head`
raises ValueError for one that does not fit. `features` are tuples of
`[B, T, F]`, `tokens` the token after each, `[B, T]` int32; Medusa reads none.
"""
