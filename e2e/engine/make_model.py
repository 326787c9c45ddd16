"""Write a tiny llama-architecture model with random weights, as one GGUF file.

The engine test wants a real inference server: its scheduler, its sampler, its HTTP quirks. It does not want sense. So the
weights are noise from a fixed seed, and three things are arranged on purpose:

* Only whole words come out. Each word is one token, some of them outside ASCII, so a reader that splits UTF-8 at a chunk
  border shows it. Byte tokens exist because a prompt needs them, but are never sampled.
* The end-of-sequence token is never sampled by itself: an answer runs to max_tokens, and a test can cancel one midway
  without luck. `logit_bias` on EOS_ID, or `stop`, ends an answer early when a test wants "stop".
* The same file, byte for byte, from the same numpy.
"""

import os
import sys

import gguf
import numpy as np

SEED = 2
CONTEXT = 32768
WIDTH = 256
FEED_FORWARD = 512
LAYERS = 2
HEADS = 4
HEADS_KV = 2

EOS_ID = 2

# The residual stream's constant, and the weight by which it pushes the unwanted tokens down. After the last norm the
# constant is still about 9, which puts them some 75 logits below the words: never by chance, and yet a `logit_bias` of
# 100 brings one back.
CONSTANT = 10.0
SUPPRESSION = 8.0

# Jinja. Plain marks rather than control tokens: the vocabulary is too small to need any.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '[' + message['role'] + '] ' + message['content'] + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)

WORDS = (
    "a an and are as at be but by for from has in is it its no not of on or so that the then this to was with "
    "anchor bell bird boat bridge candle cloud copper dawn desk door drum east engine feather field fire flag fog forest "
    "garden gate glass grain green harbor hill hour ink iron island key ladder lake lamp leaf letter light map market meadow "
    "mill mirror moon morning mountain needle net night north oak ocean orchard paper path pearl pine plain pond rain reed "
    "ridge river road roof rope sail salt sand sea seed shadow shell ship shore silver sky slow smoke snow song south spring "
    "star steel stone storm stream summer sun tide tower tree valley village wall water wave west wheel wind window winter "
    "wood wool yard year naïve café señal größe жизнь вода 東京 水 光 한국 🙂 🌊 ✓"
).split()


def vocabulary():
    """Tokens, scores and kinds of a SentencePiece vocabulary; the ids below FIRST_WORD are never sampled."""
    kind = gguf.TokenType
    rows = [("<unk>", 0.0, kind.UNKNOWN), ("<s>", 0.0, kind.CONTROL), ("</s>", 0.0, kind.CONTROL)]
    rows += [(f"<0x{b:02X}>", 0.0, kind.BYTE) for b in range(256)]
    rows += [("▁" + word, -float(i), kind.NORMAL) for i, word in enumerate(WORDS)]
    return rows


def weights(vocab_size, first_word):
    """The tensors by GGUF name, in file order."""
    rng = np.random.default_rng(SEED)

    def noise(*shape, scale=None):
        scale = shape[-1] ** -0.5 if scale is None else scale
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def reads(rows, columns):
        """A matrix that does not see the constant in column 0."""
        matrix = noise(rows, columns)
        matrix[:, 0] = 0.0
        return matrix

    def adds(rows, columns):
        """A matrix that leaves the constant in column 0 alone."""
        matrix = noise(rows, columns)
        matrix[0, :] = 0.0
        return matrix

    # Column 0 of the residual stream holds the same number for every token from end to end, and only the output layer
    # looks at it: that is the bias term which the llama architecture does not have.
    embedding = noise(vocab_size, WIDTH, scale=0.5)
    embedding[:, 0] = CONSTANT
    yield "token_embd.weight", embedding

    width_kv = WIDTH // HEADS * HEADS_KV
    ones = np.ones(WIDTH, dtype=np.float32)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", ones
        yield prefix + "attn_q.weight", reads(WIDTH, WIDTH)
        yield prefix + "attn_k.weight", reads(width_kv, WIDTH)
        yield prefix + "attn_v.weight", reads(width_kv, WIDTH)
        yield prefix + "attn_output.weight", adds(WIDTH, WIDTH)
        yield prefix + "ffn_norm.weight", ones
        yield prefix + "ffn_gate.weight", reads(FEED_FORWARD, WIDTH)
        yield prefix + "ffn_up.weight", reads(FEED_FORWARD, WIDTH)
        yield prefix + "ffn_down.weight", adds(WIDTH, FEED_FORWARD)

    yield "output_norm.weight", ones
    # Small weights, so that no word is much more likely than another.
    output = noise(vocab_size, WIDTH, scale=0.1)
    output[:, 0] = 0.0
    output[:first_word, 0] = -SUPPRESSION
    yield "output.weight", output


def write(path):
    rows = vocabulary()
    first_word = len(rows) - len(WORDS)

    out = gguf.GGUFWriter(path, "llama")
    out.add_name("iop-noise")
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS_KV)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(rows))

    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list([token for token, _, _ in rows])
    out.add_token_scores([score for _, score, _ in rows])
    out.add_token_types([kind for _, _, kind in rows])
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(EOS_ID)
    out.add_add_bos_token(True)
    out.add_add_eos_token(False)
    out.add_chat_template(CHAT_TEMPLATE)

    for name, tensor in weights(len(rows), first_word):
        out.add_tensor(name, tensor)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_model.py FILE.gguf")
    target = sys.argv[1]
    # Whole or not at all: a half-written file must not look like a finished one to the next run.
    write(target + ".part")
    os.replace(target + ".part", target)


if __name__ == "__main__":
    main()
