"""Hard requests signed by botocore, sent byte by byte as they were signed: each is accepted, and refused once changed."""
import http.client
import socket
import urllib.parse

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from conftest import unique

REGION = "us-east-1"


@pytest.fixture(scope="module")
def hard(s3):
    """A bucket of this file's own, so that lists are short."""
    name = unique("hard")
    s3.create_bucket(Bucket=name)
    return name


def credentials(shared):
    return botocore.credentials.Credentials(shared.keys["access_key"], shared.keys["secret_key"])


def sign(shared, signer, method, target, headers=(), body=b""):
    """The (target, headers) that botocore makes of the request; neither is encoded or normalised any more."""
    request = botocore.awsrequest.AWSRequest(method, shared.endpoint + target, data=body, headers=dict(headers))
    signer.add_auth(request)
    return request.url[len(shared.endpoint):], list(request.headers.items())


def sign_header(shared, service, method, target, headers=(), body=b""):
    kind = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
    return sign(shared, kind(credentials(shared), service, REGION), method, target, headers, body)


def sign_query(shared, method, target, headers=()):
    return sign(shared, botocore.auth.S3SigV4QueryAuth(credentials(shared), "s3", REGION, expires=60), method, target, headers)


def exchange(shared, method, target, headers=(), body=b""):
    """Sends exactly these bytes; answers (status, body)."""
    url = urllib.parse.urlsplit(shared.endpoint)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {url.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        answer = http.client.HTTPResponse(connection, method=method)
        answer.begin()
        return answer.status, answer.read()


def changed(text):
    """The text with its last letter or digit changed, outside an escape such as %2F; a hex digit stays one."""
    for at in range(len(text) - 1, -1, -1):
        if text[at].isalnum() and "%" not in text[max(0, at - 2):at]:
            return text[:at] + ("b" if text[at] == "a" else "a") + text[at + 1:]
    raise AssertionError(f"nothing to change in {text}")


# What a path of S3 may look like on the wire, and the key that it means.
PATHS = {
    "space": ("a%20b", "a b"),
    "double slash": ("a//b", "a//b"),
    "leading slash": ("/a", "/a"),
    "trailing slash": ("a/", "a/"),
    "escaped slash": ("x%2Fy", "x/y"),
    "unicode": ("%C3%A9/%E6%97%A5%E6%9C%AC/%F0%9F%98%80x", "é/日本/😀x"),
    "bare plus": ("p+q", "p+q"),
    "escaped plus": ("r%2Bs", "r+s"),
    "dots": ("./d/../e", "./d/../e"),
    "escaped percent": ("f%2541", "f%41"),
    "marks": ("~m-n._%28o%29%27%2A%21", "~m-n._(o)'*!"),
    "equals and colon": ("k%3D1%3A2", "k=1:2"),
}


@pytest.mark.parametrize("path, key", PATHS.values(), ids=PATHS.keys())
def test_paths(shared, s3, hard, path, key):
    target = f"/{hard}/{path}"
    body = key.encode()
    signed, headers = sign_header(shared, "s3", "PUT", target, body=body)
    assert exchange(shared, "PUT", signed, headers, body)[0] == 200
    assert s3.get_object(Bucket=hard, Key=key)["Body"].read() == body
    assert exchange(shared, "PUT", changed(signed), headers, body)[0] == 403
    assert exchange(shared, "PUT", signed, headers, body[:-1] + b"#")[0] == 400  # the hash that was signed is another

    signed, headers = sign_header(shared, "s3", "GET", target)
    assert exchange(shared, "GET", signed, headers) == (200, body)
    assert exchange(shared, "HEAD", signed, headers)[0] == 403

    signed, headers = sign_query(shared, "GET", target)
    assert exchange(shared, "GET", signed, headers) == (200, body)
    path_sent, query = signed.split("?")
    assert exchange(shared, "GET", changed(path_sent) + "?" + query)[0] == 403
    assert exchange(shared, "GET", changed(signed))[0] == 403  # ends with the signature
    assert exchange(shared, "GET", signed.replace("X-Amz-Expires=60", "X-Amz-Expires=61"))[0] == 403


QUERIES = {
    "empty values": "list-type=2&prefix=&delimiter=&max-keys=7",
    "no equals sign": "list-type=2&prefix&max-keys=7",
    "out of order": "prefix=q&max-keys=7&list-type=2",
    "escapes": "list-type=2&prefix=a%20b%2Bc%2Fd%3De%26f",
    "unicode": "list-type=2&prefix=%C3%A9%E6%97%A5x",
    "upper before lower": "list-type=2&prefix=x&Prefix=y&PREFIX=z",
    "name begins another": "list-type=2&a=1&a-b=2&ab=3",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
@pytest.mark.parametrize("way", ["header", "query"])
def test_queries(shared, hard, query, way):
    target = f"/{hard}?{query}"
    if way == "header":
        signed, headers = sign_header(shared, "s3", "GET", target)
    else:
        signed, headers = sign_query(shared, "GET", target)
    status, body = exchange(shared, "GET", signed, headers)
    assert status == 200 and b"<ListBucketResult" in body, body
    assert exchange(shared, "GET", changed(signed), headers)[0] == 403
    assert exchange(shared, "GET", signed.replace("list-type=2", "list-type=1"), headers)[0] == 403
    assert exchange(shared, "GET", signed + "&x=1", headers)[0] == 403


@pytest.mark.parametrize("query", ["list-type=2&x=2&x=1&x=", "list-type=2&x&x", "x=b&list-type=2&x=a"])
def test_repeated_names(shared, hard, query):
    """Only in the header: botocore's presigned queries keep one of each name."""
    target = f"/{hard}?{query}"
    signed, headers = sign_header(shared, "s3", "GET", target)
    assert exchange(shared, "GET", signed, headers)[0] == 200
    assert exchange(shared, "GET", signed + "&x=", headers)[0] == 403
    assert exchange(shared, "GET", signed.replace("&x", "", 1), headers)[0] == 403


def test_header_values(shared, s3, hard):
    note = "  two  inner   spaces, \"quotes\" and a tab\tx "
    headers = {"x-amz-meta-note": note, "x-amz-meta-empty": "", "Content-Type": "text/plain; charset=utf-8"}
    target, signed = sign_header(shared, "s3", "PUT", f"/{hard}/headers", headers, b"body")
    assert exchange(shared, "PUT", target, signed, b"body")[0] == 200
    found = s3.head_object(Bucket=hard, Key="headers")
    assert found["Metadata"]["note"].split() == note.split() and found["ContentType"] == headers["Content-Type"]

    for name, value in signed:
        if not value:
            continue
        other = [(n, changed(v) if n == name else v) for n, v in signed]
        status, body = exchange(shared, "PUT", target, other, b"body")
        assert status in (400, 403), (name, body)  # 400: a date or hash that cannot be one
    dropped = [(n, v) for n, v in signed if n != "x-amz-meta-note"]
    assert exchange(shared, "PUT", target, dropped, b"body")[0] == 403
    added = signed + [("x-amz-meta-more", "1")]
    assert exchange(shared, "PUT", target, added, b"body")[0] == 403


def test_signed_headers_of_presigned_queries(shared, hard):
    target, headers = sign_query(shared, "GET", f"/{hard}?list-type=2", {"x-amz-request-payer": "a  b"})
    assert exchange(shared, "GET", target, headers)[0] == 200
    assert exchange(shared, "GET", target, [(n, changed(v)) for n, v in headers])[0] == 403
    assert exchange(shared, "GET", target)[0] == 403


@pytest.mark.parametrize("path", ["/", "/a%20b", "/a//b/", "/a/./b/../c", "/a%2Fb", "/%C3%A9", "/a+b", "//"])
def test_paths_of_other_services(shared, path):
    """These are normalised, and encoded once more."""
    headers = {"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Type": "application/x-amz-json-1.1"}
    body = b'{"NameContains": "none-of-this-name"}'
    target, signed = sign_header(shared, "sagemaker", "POST", path + "?b=2&a=%20&a", headers, body)
    status, answer = exchange(shared, "POST", target, signed, body)
    assert (status, answer) == (200, b'{"TrainingJobSummaries":[]}')
    assert exchange(shared, "POST", changed(target), signed, body)[0] == 403
    assert exchange(shared, "POST", target, signed, body.replace(b"none", b"nome"))[0] == 403
    assert exchange(shared, "POST", "/x" + target, signed, body)[0] == 403
