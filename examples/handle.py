"""Ask a running Shoal through its Python handle: whole, and piece by piece.

`make serve` prints how to run this against what it started.
"""

from __future__ import annotations

import sys

import ray
from ray import serve

from deployments.handle import GenerateRequest
from deployments.openai import ChatMessage

ray.init(log_to_driver=False)
shoal = serve.get_app_handle("shoal")

question = ChatMessage(role="user", content="What is the capital of France?")
model = sys.argv[1] if len(sys.argv) > 1 else None  # may be left out where one is served
request = GenerateRequest(model=model, messages=[question], temperature=0)
print(shoal.generate.remote(request).result().text)

for delta in shoal.options(stream=True).stream.remote(request):
    print(delta.text, end="", flush=True)
print()
