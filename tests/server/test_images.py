"""Images, without and with a vision model."""

import base64
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from serving import Server, running_server
from tiny import Pair, write_vision_model

from server.answers import cycles, drafted, stats
from server.options import drafting, exact

Open: TypeAlias = Callable[..., Server]


def png(color: int, size: int = 8) -> str:
    """A grey square as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        )

    header = size.to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    rows = (b"\0" + bytes([color]) * size) * size
    file = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(file).decode()


def conversation(*colors: int, text: str = "abcabc") -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": png(color)}} for color in colors]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


def test_refused_without_vision_model(open_server: Open, wavering_pair: Pair) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    body = {"messages": conversation(100), "max_tokens": 5}
    reply = server.ask("POST", "/v1/chat/completions", body)
    assert reply == plain.ask("POST", "/v1/chat/completions", body)
    assert reply.status == 500
    assert "mmproj" in reply.body["error"]["message"]
    assert server.complete("abc", 5)["tokens_predicted"] == 5


KINDS = ["dense", "dense sliding", "hybrid", "hybrid sliding"]


@pytest.fixture(params=KINDS)
def seeing(
    request: pytest.FixtureRequest,
    dense_target: Path,
    hybrid_target: Path,
    make_drafter: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Pair, list[object]]:
    """A pair and the options that give its target eyes."""
    mrope = request.param.startswith("hybrid")
    window = 32 if "sliding" in request.param else None
    pair = Pair(hybrid_target if mrope else dense_target, make_drafter(mrope=mrope, window=window))
    path = tmp_path_factory.getbasetemp() / f"vision-{mrope}.gguf"
    if not path.exists():
        write_vision_model(path, mrope=mrope)
    # which encodes an image of 2000 rows
    return pair, ["--mmproj", path, "--no-warmup"]


@pytest.mark.parametrize("colors", [(), (100,), (200, 100)])
def test_images(
    open_server: Open, seeing: tuple[Pair, list[object]], colors: tuple[int, ...]
) -> None:
    pair, eyes = seeing
    plain, server = open_server(pair.target, None, *eyes), open_server(*pair, *eyes)
    answer, expected = (each.chat(conversation(*colors), 40) for each in (server, plain))
    assert answer["choices"] == expected["choices"]
    assert answer["usage"] == expected["usage"]
    assert drafted(answer) > 0
    # images are seen, else the test shows nothing
    others = [plain.chat(conversation(*(c // 2 for c in colors)), 40)["choices"]]
    assert (others == [expected["choices"]]) == (not colors)


def test_image_in_the_cache(open_server: Open, seeing: tuple[Pair, list[object]]) -> None:
    """A second turn after an image drafts as from nothing."""
    pair, eyes = seeing
    messages = conversation(100)
    asked = [
        *messages,
        {"role": "assistant", "content": "abc"},
        {"role": "user", "content": "defdefdef" * 10},
    ]
    with running_server(pair.target, [*exact(), *drafting(pair.drafter), *eyes]) as cold:
        expected = cold.chat(asked, 40, dflash2_trace=True)
    server = open_server(*pair, *eyes)
    server.chat(messages, 20, cache_prompt=True)
    answer = server.chat(asked, 40, cache_prompt=True, dflash2_trace=True)
    assert answer["choices"] == expected["choices"]
    assert cycles(answer) == cycles(expected)


def test_text_after_an_image_is_accepted_as_before(
    open_server: Open, permutation_pair: Pair, tmp_path: Path
) -> None:
    """Where the last token alone decides, an image changes nothing: whole blocks are accepted."""
    path = write_vision_model(tmp_path / "vision.gguf", mrope=False)
    server = open_server(*permutation_pair, "--mmproj", path, "--no-warmup")
    for colors in ((), (100,), (200, 50)):
        told = stats(server.chat(conversation(*colors), 1 + 8 * 5))
        assert told["accepted_per_position"] == [5] * 7


def test_together_with_text(open_server: Open, seeing: tuple[Pair, list[object]]) -> None:
    """Slots with images and slots without in the same batches."""
    pair, eyes = seeing
    plain = open_server(pair.target, None, *eyes)
    server = open_server(*pair, *eyes, n_slots=3)
    asked = [conversation(*colors) for colors in ((), (100,), (), (50, 60), (), (200,))]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda messages: server.chat(messages, 40), asked))
    for messages, answer in zip(asked, answers, strict=True):
        assert answer["choices"] == plain.chat(messages, 40)["choices"]
