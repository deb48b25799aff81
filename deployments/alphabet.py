"""How byte-level tokenizers spell bytes: GPT-2's alphabet."""

from __future__ import annotations


def byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable character for each byte: itself where printable, else 256 and upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): bytes([byte]) for byte in printable}
    return spelled | {chr(256 + place): bytes([byte]) for place, byte in enumerate(others)}
