"""The room that computes: model, KV pages and sampling, in torch and without Ray."""
