"""The object store through boto3 and both aws command lines."""
import hashlib
import os
import subprocess
import unicodedata

import botocore.exceptions
import pytest
from boto3.s3.transfer import TransferConfig

from conftest import aws, unique


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_a_gigabyte_by_multipart(which, shared, tmp_path, bucket):
    source, back = tmp_path / "in", tmp_path / "out"
    block = os.urandom(1 << 20)
    with open(source, "wb") as file:
        for i in range(1024):
            file.write(i.to_bytes(8, "big") + block[8:])
    aws(which, shared, "s3", "cp", str(source), f"s3://{bucket}/giga", "--no-progress")
    aws(which, shared, "s3", "cp", f"s3://{bucket}/giga", str(back), "--no-progress")
    assert digest(source) == digest(back)
    source.unlink()
    back.unlink()
    aws(which, shared, "s3", "rm", f"s3://{bucket}/giga")


HOSTILE = ["a b", "a+b", "a%20b", "a%2Bb", "é", unicodedata.normalize("NFD", "é"), "日本語", "😀", "quote'\"", "semi;colon",
           "amp&er=sand", "hash#tag", "q?x", "<xml>", "back\\slash", "-dash", ".hidden", "trailing.", "x" * 200,
           "tab\there", "comma,", "(paren)", "[brackets]", "{brace}", "~tilde", "$dollar", "star*", "pipe|", "caret^"]


def test_sync_of_two_thousand_hostile_names(which, shared, tmp_path, bucket):
    tree = tmp_path / "tree"
    for i in range(2000):
        name = HOSTILE[i % len(HOSTILE)]
        folder = tree / f"d{i % 7}" / HOSTILE[(i * 3) % len(HOSTILE)][:60]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i} {name}").write_bytes(f"{i}".encode())
    prefix = unique("sync")
    aws(which, shared, "s3", "sync", str(tree), f"s3://{bucket}/{prefix}", "--no-progress", "--quiet")
    back = tmp_path / "back"
    aws(which, shared, "s3", "sync", f"s3://{bucket}/{prefix}", str(back), "--no-progress", "--quiet")

    def content(root):
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert len(content(tree)) == 2000
    assert content(tree) == content(back)
    again = aws(which, shared, "s3", "sync", str(tree), f"s3://{bucket}/{prefix}", "--no-progress")
    assert again.stdout == ""
    aws(which, shared, "s3", "rm", f"s3://{bucket}/{prefix}", "--recursive", "--quiet")
    assert aws(which, shared, "s3", "ls", f"s3://{bucket}/{prefix}/", check=False).stdout == ""


def test_buckets_and_lists(which, shared, tmp_path):
    name = unique("made")
    aws(which, shared, "s3", "mb", f"s3://{name}")
    assert name in aws(which, shared, "s3", "ls").stdout
    (tmp_path / "f").write_text("x")
    aws(which, shared, "s3", "cp", str(tmp_path / "f"), f"s3://{name}/a/f")
    assert aws(which, shared, "s3", "rb", f"s3://{name}", check=False).returncode != 0
    assert "PRE a/" in aws(which, shared, "s3", "ls", f"s3://{name}").stdout
    url = aws(which, shared, "s3", "presign", f"s3://{name}/a/f").stdout.strip()
    got = subprocess.run(["curl", "-s", url], capture_output=True, text=True, timeout=20)
    assert got.stdout == "x"
    aws(which, shared, "s3", "mv", f"s3://{name}/a/f", f"s3://{name}/b/f")
    aws(which, shared, "s3", "rb", f"s3://{name}", "--force")
    assert name not in aws(which, shared, "s3", "ls").stdout


def test_boto3_transfers_and_ranges(s3, bucket, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(os.urandom((20 << 20) + 7))
    key = unique("transfer")
    s3.upload_file(str(path), bucket, key, ExtraArgs={"Metadata": {"k": "v"}, "ContentType": "text/x"},
                   Config=TransferConfig(multipart_threshold=8 << 20))
    head = s3.head_object(Bucket=bucket, Key=key)
    assert head["ContentLength"] == path.stat().st_size and head["Metadata"] == {"k": "v"}
    assert head["ContentType"] == "text/x" and head["ETag"].endswith('-3"')
    s3.download_file(bucket, key, str(tmp_path / "g"))
    assert digest(path) == digest(tmp_path / "g")
    part = s3.get_object(Bucket=bucket, Key=key, Range="bytes=8388600-8388615")
    assert part["Body"].read() == path.read_bytes()[8388600:8388616]
    assert s3.get_object(Bucket=bucket, Key=key, Range="bytes=-5")["Body"].read() == path.read_bytes()[-5:]
    with pytest.raises(botocore.exceptions.ClientError, match="InvalidRange"):
        s3.get_object(Bucket=bucket, Key=key, Range="bytes=99999999-")
    s3.copy_object(Bucket=bucket, Key=key + "-copy", CopySource={"Bucket": bucket, "Key": key})
    assert s3.head_object(Bucket=bucket, Key=key + "-copy")["ContentLength"] == path.stat().st_size
    with pytest.raises(botocore.exceptions.ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*")


def test_keys_stay_as_they_are(s3, bucket):
    prefix = unique("keys")
    keys = [f"{prefix}/{k}" for k in ("../up", "./dot", "a//b", "/lead", "trail/", "+", " ", "%2F", "é", "e\u0301", "😀",
                                       "\t", "cr\r", "lf\n", "\x01", "\x0b", "\ufffe")]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    listed = [o["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": 5})
              for o in page["Contents"]]
    assert listed == sorted(keys, key=lambda k: k.encode())
    for key in keys:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    gone = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": k} for k in keys]})
    # What XML 1.0 cannot carry is named by U+FFFD.
    shown = str.maketrans({"\x01": "\ufffd", "\x0b": "\ufffd", "\ufffe": "\ufffd"})
    assert [d["Key"] for d in gone["Deleted"]] == [k.translate(shown) for k in keys]
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket, Prefix=prefix)
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=bucket, Key=keys[0])
    with pytest.raises(s3.exceptions.NoSuchBucket):
        s3.list_objects_v2(Bucket=unique("nothing"))


def test_checksums(s3, bucket):
    key = unique("sums")
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"):
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=b"data", ChecksumAlgorithm=algorithm)
        except botocore.exceptions.MissingDependencyException:
            continue  # botocore needs awscrt for CRC32C and CRC64NVME
        head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert head[f"Checksum{algorithm}"]
    with pytest.raises(botocore.exceptions.ClientError, match="BadDigest"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"data", ChecksumCRC32="AAAAAA==")
