"""Ask a running Shoal through the official OpenAI client (`pip install openai`), streaming."""

from __future__ import annotations

import os
from pathlib import Path

from openai import OpenAI

key = (Path.home() / ".cache/shoal/api-key").read_text().strip()
url = os.environ.get("SHOAL_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=key)

stream = client.chat.completions.create(
    model="smollm2-135m-instruct",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
