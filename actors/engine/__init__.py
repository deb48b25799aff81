"""The room that computes: model, KV pages and sampling, in torch and without Ray."""

from actors.engine.numba_home import set_up

set_up()
