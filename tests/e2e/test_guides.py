"""The guides, typed: every command in the sh blocks of docs/guides, with a small text and few steps."""
import random
import re
import shutil
import subprocess

import pytest
from conftest import BIN, ROOT, running_service


def commands(name, small):
    """The sh blocks of a guide, one after the other; of `small`, each text that must be there and what replaces it."""
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/guides" / name).read_text(), re.M | re.S))
    for full, replaced in small.items():
        assert full in text, full
        text = text.replace(full, replaced)
    return text


def type_in(folder, service, text):
    environment = service.environment()
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    done = subprocess.run(["bash", "-ec", text], cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=300,
                          capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


def losses(out):
    return [float(loss) for loss in re.findall(r"^eval .*loss=([0-9.]+) ", out, re.M)]


def write_text(folder):
    """Sentences with something to learn, in files of blank-line separated documents."""
    words, choose = "the cat and dog ran to a house river slowly of light stone sea wind over".split(), random.Random(1)
    for part, files in (("train", 4), ("held-out", 2)):
        (folder / part).mkdir(parents=True)
        for file in range(files):
            text = [" ".join(words[(start + i * i) % 16] for i in range(60)) for start in choose.choices(range(16), k=80)]
            (folder / part / f"{file}.txt").write_text("\n\n".join(text))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """A service of four nodes with a text in S3, where ./quickstart leaves one."""
    folder = tmp_path_factory.mktemp("quickstart")
    write_text(folder / "text")
    with running_service(nodes=4) as service:
        type_in(folder, service, "muster mb s3://quickstart && muster cp -r text s3://quickstart/text")
        yield service


@pytest.fixture(scope="module")
def scratch(four, tmp_path_factory):
    """A folder in which the guide "pre-train from scratch" was followed, and what was shown."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for example, full, small in (("tokenizer", '"4096"', '"300"'), ("train", '"train.steps" = 200', '"train.steps" = 10'),
                                 ("train", '"train.sequence" = 256', '"train.sequence" = 64')):
        file = folder / f"examples/{example}.toml"
        assert full in file.read_text()
        file.write_text(file.read_text().replace(full, small))
    return folder, type_in(folder, four, commands("pretrain-from-scratch.md", {"--sequence 256": "--sequence 64"}))


def test_pretrain_from_scratch(scratch):
    folder, out = scratch
    model, exported = losses(out)[-2:]
    assert abs(model - exported) < 0.01, out
    assert (folder / "hf/model.safetensors").exists()
    curve = re.findall(r"^ +(\d+) +([0-9.]+) #+$", out, re.M)
    assert [int(step) for step, _ in curve] == [1, 10], out
    assert float(curve[0][1]) > float(curve[1][1]) > 0, out


def test_training_alone(four, tmp_path):
    out = type_in(tmp_path, four, commands("training.md", {"--vocab-size 4096": "--vocab-size 300",
                                                           "train.steps=400": "train.steps=6",
                                                           "--held-out 0.01": "--held-out 0.3"}))
    assert "done step=6/6" in out and len(losses(out)) >= 2, out
    assert list((tmp_path / "cut/held-out").glob("*.mts")) and list((tmp_path / "cut/train").glob("*.mts"))
    wrote = [line for line in out.splitlines() if line.startswith("Wrote ")]
    assert wrote and not any("//" in line for line in wrote), out


def test_change_layout(four, scratch, tmp_path):
    out = type_in(tmp_path, four, commands("change-layout.md", {
        "steps=200": "steps=120", "--sequence 256": "--sequence 64",
        '"model.preset" = "quickstart"': '"model.preset" = "tiny"', '"train.sequence" = 256': '"train.sequence" = 64'}))
    stopped, = map(int, re.findall(r"stopped at step (\d+) of 120", out))
    assert 60 <= stopped < 120
    assert re.search(r"start ranks=4 pp=2 replica=1 shard=2 tp=1 ", out), out
    assert re.search(rf"resume step={stopped} ", out), out
    one_way, changed, exported = losses(out)[-3:]
    assert abs(one_way - changed) <= 1e-3 and changed == exported, out
    shown = [line for line in out.splitlines() if line.startswith("Completed")]
    assert len(shown) == 2, out
