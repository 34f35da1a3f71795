"""Token ids and decoded text of muster-data beside Hugging Face's `tokenizers` and SentencePiece, over tokenizers that
the test trains in every supported form, on a hard text and on random Unicode."""
import json
import os
import random
import re
import subprocess
import unicodedata

import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from conftest import BIN, ROOT

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
SEED = int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(2**32)))

HARD = [
    "", " ", "\n", "\r\n", "\t", "a", "'", "'s", " 's", "it's we'LL I'm x'\u017fy 'D", "Hello, world!  Two spaces;   three.",
    "\U0001f469\u200d\U0001f680\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd",
    "\u6f22\u5b57\u4eee\u540d\u4ea4\u3058\u308a\u6587\u3002\uff11\uff12\uff13\u3000\ud55c\uad6d\uc5b4\n\u4e2d\u6587 text\u6df7\u5408",
    "e\u0301 a\u0308\u0323 na\u00efve \u0915\u094d\u0937\u093f \u0e01\u0e33 \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u0645\u0631\u062d\u0628\u0627",
    "runs" + " " * 40 + "of" + " " * 3 + "spaces   \n\n\n   and\n \n newlines \n", "tab\tand\t\ttabs \t mixed\t",
    "CRLF\r\nlines\r\n\r\n  indented\r\nold\rmac\r\r", "x" * 5000, "\u6f22" * 3000, "ab" * 2000 + " " + "1" * 1000,
    "0 12 345 6789 01234567890 3.14159e-10 \u0663\u0664\u0665 \u00bd \u2167 1,000,000", "\u00a0\u2009\u3000\u2028x\u2029 \u0085y\ufeff",
    "def f(x):\n    return x**2  # comment\n\n\n\nclass A: pass", "<s> </s> <unk> <|endoftext|> <0x41> \u2581 \u2581\u2581a",
    "\u0000\u0001\u001b[0m\u007f\u0080", "\U0010ffff\ue000\U000f0000", "?!...--->>> ((([[[{{{ \u00ab\u00bb\u201c\u201d \u2014",
]


def invalid_utf8():
    """Bytes that are no UTF-8, and the text that they are read as: U+FFFD for every wrong byte."""
    for raw in (b"a\xffb", b"\xc3", b"\xe6\xbc", b"ok \xf0\x9f\x98 no", b"\xed\xa0\x80", b"\xc0\xaf\xf5\x80", b"\x80\x80 x"):
        yield raw, re.sub("[\udc80-\udcff]", "\ufffd", raw.decode("utf-8", "surrogateescape"))


def random_texts(count):
    """Random Unicode, of characters that every version in use knows, in clumps of one kind."""
    print(f"MUSTER_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    pools = [assigned, [c for c in assigned if ord(c) < 0x80], [c for c in assigned if c.isspace()],
             [c for c in assigned if unicodedata.category(c)[0] == "N"], [c for c in assigned if unicodedata.category(c)[0] == "M"],
             list("abcdefgh '"), list(" \n\r\t"), list("'stremvld'"), list("0123456789")]
    return ["".join(rng.choice(pool) for pool in rng.choices(pools, k=rng.randrange(1, 12)) for _ in range(rng.randrange(1, 6)))
            for _ in range(count)]


def corpus():
    """The documentation, and some of the hard texts, so that merges of all scripts are learnt."""
    files = sorted((ROOT / "docs").rglob("*.md"))
    return [line for file in files for line in file.read_text().splitlines(keepends=True)] + HARD * 5


def byte_level(*stages, **options):
    use_regex = options.pop("use_regex", True)
    tokenizer = Tokenizer(models.BPE(**options))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*stages, last]) if stages else last
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=["<|endoftext|>", "<s>"])
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def spaced(byte_fallback, prepend, fuse_unk=True):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    steps = [normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence(([normalizers.Prepend("\u2581")] if prepend else []) + steps)
    parts = [decoders.Replace("\u2581", " "), *([decoders.ByteFallback()] if byte_fallback else []), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if prepend else []))
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    # Words as SentencePiece makes them: merges do not cross spaces and newlines.
    words = [word for line in corpus() if len(line) < 1000 for word in re.findall(r" *[^ \n]+|\n", line)]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=special, show_progress=False, limit_alphabet=200)
    tokenizer.train_from_iterator(words, trainer)
    if not byte_fallback:
        return tokenizer
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(document))


def with_ignored_merges(tokenizer):
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = True
    merges = document["model"]["merges"]
    document["model"]["merges"] = merges[:100] + merges[101::2]  # words that no merge makes any more
    known = {token for token, index in document["model"]["vocab"].items() if index < 258}
    kept = []
    for left, right in document["model"]["merges"]:
        if left in known and right in known:
            known.add(left + right)
            kept.append([left, right])
    document["model"]["merges"] = kept
    return Tokenizer.from_str(json.dumps(document))


def with_strings_for_merges(tokenizer):
    document = json.loads(tokenizer.to_str())
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    return document


def with_added_tokens(tokenizer):
    from tokenizers import AddedToken
    tokenizer.add_tokens([AddedToken("    ", normalized=True), AddedToken("return x", normalized=False), AddedToken("emoji\U0001f680"),
                          AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True)])
    return tokenizer


FORMS = {
    "gpt2": lambda: byte_level(),
    "gpt2-split": lambda: byte_level(split(GPT2), use_regex=False),
    "llama3": lambda: byte_level(split(LLAMA3), use_regex=False),
    "llama3-ignore-merges": lambda: with_ignored_merges(byte_level(split(LLAMA3), use_regex=False)),
    "qwen2": lambda: byte_level(split(QWEN2), use_regex=False),
    "smollm2": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True)),
    "digit-runs": lambda: byte_level(pre_tokenizers.Digits(individual_digits=False)),
    "added-tokens": lambda: with_added_tokens(byte_level()),
    "llama2": lambda: spaced(byte_fallback=True, prepend=True),
    "llama2-no-prefix": lambda: spaced(byte_fallback=True, prepend=False),
    "unknown-fused": lambda: spaced(byte_fallback=False, prepend=True),
    "unknown-apart": lambda: spaced(byte_fallback=False, prepend=True, fuse_unk=False),
}


def muster(command, tokenizer, texts, *options):
    lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" if isinstance(text, str) else text + "\n" for text in texts)
    done = subprocess.run([BIN / "muster-data", command, "--tokenizer", tokenizer, "--json-lines", *options],
                          input=lines.encode("utf-8"), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def encode(tokenizer, texts, *options):
    return [[int(word) for word in line.split()] for line in muster("encode", tokenizer, texts, *options)]


def decode(tokenizer, lists):
    given = "".join(" ".join(map(str, ids)) + "\n" for ids in lists)
    done = subprocess.run([BIN / "muster-data", "decode", "--tokenizer", tokenizer, "--json-lines"], input=given.encode(),
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def differences(texts, mine, theirs):
    return [(text[:200], a[:50], b[:50]) for text, a, b in zip(texts, mine, theirs) if a != b][:3]


@pytest.mark.parametrize("form", FORMS)
def test_ids_and_text_are_those_of_tokenizers(form, tmp_path):
    theirs = FORMS[form]()
    path = tmp_path / "tokenizer.json"
    theirs.save(str(path))
    texts = HARD + random_texts(2000) + ["".join(HARD), "a <|endoftext|><s> b", "x    return x <l> y <r>  z<|im_start|>emoji\U0001f680"]
    theirs.encode_special_tokens = True
    expected = [encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)]
    mine = encode(path, texts)
    assert not differences(texts, mine, expected)
    assert not differences(texts, decode(path, mine), theirs.decode_batch(expected))
    theirs.encode_special_tokens = False
    expected = [encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)]
    assert not differences(texts, encode(path, texts, "--special-tokens"), expected)
    for raw, read_as in invalid_utf8():
        done = subprocess.run([BIN / "muster-data", "encode", "--tokenizer", path], input=raw, capture_output=True, timeout=60)
        assert [int(word) for word in done.stdout.split()] == theirs.encode(read_as, add_special_tokens=False).ids, raw


def test_merges_may_be_strings(tmp_path):
    theirs = byte_level()
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(with_strings_for_merges(theirs)))
    texts = HARD + random_texts(100)
    theirs.encode_special_tokens = True
    assert encode(path, texts) == [e.ids for e in theirs.encode_batch(texts)]


def test_every_character_is_of_the_same_kind(tmp_path):
    """A merge of any last byte with what follows shows whether the two are in one word: letters before a letter, numbers
    before a number, white space before white space."""
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence([split(LLAMA3), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    theirs.decoder = decoders.ByteLevel()
    document = json.loads(theirs.to_str())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tab = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("\t")[0][0]
    pairs = [[left, right] for right in ("a", "1", tab) for left in alphabet]
    document["model"]["vocab"] = {token: i for i, token in enumerate(alphabet + ["".join(pair) for pair in pairs])}
    document["model"]["merges"] = pairs
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    theirs = Tokenizer.from_str(json.dumps(document))
    # All planes that have letters or numbers.
    characters = [chr(c) for c in [*range(0x32400), *range(0xe0000, 0xe0200)] if not 0xd800 <= c < 0xe000]
    texts = ["".join(f"{c}a {c}1 .{c}\t.\n" for c in characters[i:i + 128]) for i in range(0, len(characters), 128)]
    expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
    for text, mine, wanted in zip(texts, encode(path, texts), expected):
        if mine != wanted:
            lines = text.split("\n")[:-1]
            both = zip(lines, encode(path, lines), theirs.encode_batch(lines))
            pytest.fail("differ: " + ", ".join(ascii(line[0]) for line, a, b in both if a != b.ids)[:1000])


def test_sentencepiece(tmp_path):
    """Models that muster-data trained, and one that SentencePiece trained by its defaults, which normalise."""
    (tmp_path / "text.txt").write_text("".join(corpus()))
    subprocess.run([BIN / "muster-data", "train-tokenizer", "--input", tmp_path / "text.txt", "--output", tmp_path,
                    "--vocab-size", "1200"], check=True, capture_output=True, timeout=120)
    sentencepiece.SentencePieceTrainer.train(input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "other"), vocab_size=1200,
                                             model_type="bpe", minloglevel=2)
    for name in ("tokenizer.model", "other.model"):
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / name))
        texts = [text for text in HARD + random_texts(500) if "\0" not in text]
        mine = encode(tmp_path / name, texts)
        assert not differences(texts, mine, [theirs.encode(text) for text in texts])
        if name == "tokenizer.model":
            assert not differences(texts, decode(tmp_path / name, mine), [theirs.decode(ids) for ids in mine])


@pytest.mark.parametrize("change,named", [
    ({"normalizer": {"type": "NFC"}}, "normalizer NFC"), ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer Whitespace"),
    ({"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}}, "Metaspace"),
])
def test_other_forms_are_refused_by_name(change, named, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(byte_level().to_str()) | change))
    done = subprocess.run([BIN / "muster-data", "encode", "--tokenizer", path], input="x", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and named in done.stderr and "supported:" in done.stderr, done.stderr


