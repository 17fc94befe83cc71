//! Between a person and token ids: tokenizers, chat templates, sampling, streaming.
