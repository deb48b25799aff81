"""A node is there if it takes a connection, whatever Ray says of it."""

from __future__ import annotations

import socket

from actors.nodes import answers


async def test_a_node_answers_while_it_listens_and_not_afterwards() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        node = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": listening.getsockname()[1]}
        assert await answers(node)
    assert not await answers(node)
