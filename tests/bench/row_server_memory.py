"""The memory that the drafter is said to take, against what the process grows by."""

import statistics
from collections.abc import Iterator

from cells import Cell
from dflash2 import demo
from server_load import OURS, PLAIN, ServerSetting, contestant
from serving import Server, running_server
from turns import mixed_prompts


def cells(setting: ServerSetting) -> Iterator[Cell]:
    for n_slots, n_ctx in ((1, 512),) if setting.quick else ((1, 4096), (8, 2048)):
        resident: dict[str, list[int]] = {OURS: [], PLAIN: []}
        reported = 0
        for _ in range(1 if setting.quick else 3):
            for name, sizes in resident.items():
                options, program = contestant(setting, name, n_slots, n_ctx)
                # without: the same binary, else its own size counts too
                program = None if name == PLAIN else program
                with running_server(demo.target_path(), options, program=program) as server:
                    _use(server)
                    sizes.append(server.resident_bytes())
                    if name == OURS:
                        reported = sum(server.get("/props")["dflash2"]["memory"].values())
        growth = statistics.median(resident[OURS]) - statistics.median(resident[PLAIN])
        yield Cell(
            "memory",
            f"{n_slots} x {n_ctx} tokens: reported {reported / 2**20:.1f} MiB"
            f" / growth {growth / 2**20:.1f} MiB",
            reported / growth,
            "x",
            at_least=0.95,
            at_most=1.05,
            details={"reported": reported, "resident": resident},
        )


def _use(server: Server) -> None:
    """Once through every buffer: memory that was never written is not resident."""
    tokens = server.post("/tokenize", {"content": mixed_prompts(3)[1][0]["content"] * 20})["tokens"]
    slots = server.get("/slots")
    for slot in slots:
        # up to the end of the slot's cache
        n_prompt = slot["n_ctx"] - 100
        server.complete(tokens[:n_prompt], 64, id_slot=slot["id"], ignore_eos=True)
