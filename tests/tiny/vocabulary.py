"""A byte-level tokenizer: the id of a token is its byte; special tokens follow."""

import gguf

BOS, EOS, MASK = 256, 257, 258
# llama.cpp wants at least one merge; two NUL bytes occur in no test
_NUL_NUL = 259
_FIRST_FILLER = 260

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def add_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Writes the tokenizer metadata for `n_vocab` >= 260 tokens, fillers at the end."""
    symbols = _byte_symbols()
    fillers = [f"<|filler{i}|>" for i in range(n_vocab - _FIRST_FILLER)]
    tokens = [*symbols, "<|bos|>", "<|end_of_text|>", "<|mask|>", symbols[0] * 2, *fillers]
    types = [gguf.TokenType.NORMAL] * n_vocab
    types[BOS] = types[EOS] = types[MASK] = gguf.TokenType.CONTROL
    types[_FIRST_FILLER:] = [gguf.TokenType.USER_DEFINED] * len(fillers)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{symbols[0]} {symbols[0]}"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _byte_symbols() -> list[str]:
    """GPT-2's stand-in for each byte: itself where printable, else the next code point from 256."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
