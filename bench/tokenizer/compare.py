#!/usr/bin/env python3
"""Tokenizer throughput beside the `tokenizers` package (encode_batch_fast) and the SentencePiece package, in alternation,
with the same threads, files and documents; the numbers of tokens must be equal.

    compare.py [--text FILE] [--rounds N] [--threads N] [--vocab N]

FILE: any text (default: the King James Bible, of Debian's bible-kjv). Tokenizers are trained on it first: byte-level BPE of
GPT-2's and Llama 3's form, and SentencePiece BPE by muster-data. Needs an environment with tests/interop/requirements.txt.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from figures import machine, summary

BIN = pathlib.Path(os.environ.get("MUSTER_BIN", pathlib.Path(__file__).resolve().parents[2] / "build/release/bin"))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
DOCUMENT_BYTES = 4096


def documents_of(path):
    if path:
        text = pathlib.Path(path).read_text(errors="replace").replace("\0", "")
    else:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    lines, out = text.splitlines(keepends=True), [""]
    for line in lines:
        if len(out[-1]) >= DOCUMENT_BYTES:
            out.append("")
        out[-1] += line
    return out


def byte_level(documents, vocab, pattern, path):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, last])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(documents, trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(path))
    return path, lambda: tokenizer.encode_batch_fast(documents, add_special_tokens=False)


def spaced(documents, vocab, threads, folder):
    import sentencepiece
    (folder / "text.txt").write_text("".join(documents))
    subprocess.run([BIN / "muster-data", "train-tokenizer", "--input", folder / "text.txt", "--output", folder,
                    "--vocab-size", str(vocab)], check=True, capture_output=True)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return folder / "tokenizer.model", lambda: theirs.encode(documents, num_threads=threads)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=8192)
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if options.threads > 1 else "false"
    documents = documents_of(options.text)
    size = len("".join(documents).encode())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "documents").write_bytes(b"\0".join(document.encode() for document in documents) + b"\0")
        peers = {
            "byte-level BPE, GPT-2 / tokenizers": byte_level(documents, options.vocab, None, folder / "gpt2.json"),
            "byte-level BPE, Llama 3 / tokenizers": byte_level(documents, options.vocab, LLAMA3, folder / "llama3.json"),
            "tokenizer.model / SentencePiece": spaced(documents, options.vocab, options.threads, folder),
        }
        print(f"{machine()}; {size / 1e6:.1f} MB in {len(documents)} documents, vocabulary {options.vocab}, "
              f"threads: {options.threads}, rounds: {options.rounds}", flush=True)
        print(f"{'':40}{'Muster, MB/s':>24}{'peer, MB/s':>24}{'Muster / peer':>22}")
        for name, (path, theirs) in peers.items():
            ours_rates, their_rates = [], []
            for _ in range(options.rounds):
                done = subprocess.run([BIN / "bench_tokenizer", path, folder / "documents", str(options.threads)],
                                      check=True, capture_output=True, text=True).stdout.split()
                ours_rates.append(size / 1e6 / float(done[0]))
                start = time.perf_counter()
                coded = theirs()
                their_rates.append(size / 1e6 / (time.perf_counter() - start))
                tokens = sum(map(len, coded))
                assert tokens == int(done[1]), f"{name}: {done[1]} tokens, the peer has {tokens}"
            ratios = [a / b for a, b in zip(ours_rates, their_rates)]
            print(f"{name:40}{summary(ours_rates):>24}{summary(their_rates):>24}{summary(ratios, 2):>22}", flush=True)


main()
