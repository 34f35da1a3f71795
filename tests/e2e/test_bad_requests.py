"""What clients get wrong, and what an attacker tries."""
import datetime
import http.client
import socket
import time
import urllib.parse

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.exceptions
import pytest


def address(shared):
    url = urllib.parse.urlparse(shared.endpoint)
    return url.hostname, url.port


def signed(shared, service, method="POST", path="/", body=b"", headers=None, secret=None, access=None, shift=0):
    """Sends one request with a signature of our own making; answers (status, body)."""
    keys = shared.keys
    request = botocore.awsrequest.AWSRequest(method, shared.endpoint + path, data=body, headers=headers or {})
    credentials = botocore.credentials.Credentials(access or keys["access_key"], secret or keys["secret_key"])
    signer = (botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth)(credentials, service, "us-east-1")
    if shift:
        real = botocore.auth.get_current_datetime
        botocore.auth.get_current_datetime = lambda *a, **k: real(*a, **k) + datetime.timedelta(seconds=shift)
        try:
            signer.add_auth(request)
        finally:
            botocore.auth.get_current_datetime = real
    else:
        signer.add_auth(request)
    connection = http.client.HTTPConnection(*address(shared), timeout=20)
    connection.request(method, path, body, dict(request.headers.items()))
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


LIST = {"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Type": "application/x-amz-json-1.1"}


def test_signatures(shared):
    assert signed(shared, "sagemaker", body=b"{}", headers=dict(LIST))[0] == 200
    status, body = signed(shared, "sagemaker", body=b"{}", headers=dict(LIST), secret="wrong")
    assert status == 403 and "InvalidSignatureException" in body
    status, body = signed(shared, "s3", "GET", "/", secret="wrong")
    assert status == 403 and "SignatureDoesNotMatch" in body
    status, body = signed(shared, "sagemaker", body=b"{}", headers=dict(LIST), access="AKIAAAAAAAAAAAAAAAAA")
    assert status == 403 and "muster env" in body
    for shift in (-1000, 1000):
        status, body = signed(shared, "sagemaker", body=b"{}", headers=dict(LIST), shift=shift)
        assert status == 403 and "15 min" in body


def test_unsigned(shared):
    connection = http.client.HTTPConnection(*address(shared), timeout=20)
    for method, path, status in (("GET", "/healthz", 200), ("GET", "/", 403), ("POST", "/", 403),
                                 ("GET", "/api/v1/nodes", 403), ("GET", "/api/v1/runner/a1-r0-i1/credentials", 401)):
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status, path


def test_unknown_operations_name_the_known(shared):
    status, body = signed(shared, "sagemaker", body=b"{}", headers=LIST | {"X-Amz-Target": "SageMaker.CreateModel"})
    assert status == 400 and "UnknownOperationException" in body and "CreateTrainingJob" in body
    status, body = signed(shared, "ec2", body=b"Action=DescribeInstances")
    assert status == 400 and "ec2" in body
    status, body = signed(shared, "iam", body=b"Action=DeleteRole")
    assert status == 400 and "InvalidAction" in body


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"a":1}}', b"\xff\xfe", b"[" * 5000, b'{"MaxResults": "x"}', b'{"MaxResults": 1e99}'],
                         ids=["cut", "list", "rest", "bytes", "deep", "type", "range"])
def test_malformed_json(shared, body):
    status, answer = signed(shared, "sagemaker", body=body, headers=dict(LIST))
    assert status == 400 and ("SerializationException" in answer or "ValidationException" in answer)


def test_malformed_xml(shared, bucket):
    status, answer = signed(shared, "s3", "POST", f"/{bucket}?delete", body=b"<Delete><Object>")
    assert status == 400 and ("MalformedXML" in answer or "InvalidRequest" in answer)


def test_a_huge_body_is_refused_before_it_is_read(shared):
    keys = shared.keys
    request = botocore.awsrequest.AWSRequest("POST", shared.endpoint + "/", data=b"{}", headers=dict(LIST))
    credentials = botocore.credentials.Credentials(keys["access_key"], keys["secret_key"])
    botocore.auth.SigV4Auth(credentials, "sagemaker", "us-east-1").add_auth(request)
    head = "POST / HTTP/1.1\r\nHost: %s:%d\r\nContent-Length: 2147483648\r\n" % address(shared)
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items()) + "\r\n"
    connection = socket.create_connection(address(shared), timeout=20)
    connection.sendall(head.encode())
    begun = time.monotonic()
    answer = connection.recv(4096).decode()
    assert time.monotonic() - begun < 5
    assert answer.split()[1] == "413", answer


def test_slow_and_half_closed_connections_hold_nobody_up(shared, sagemaker):
    idle = [socket.create_connection(address(shared), timeout=30) for _ in range(50)]
    for connection in idle:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n")
    half = socket.create_connection(address(shared), timeout=30)
    half.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    half.shutdown(socket.SHUT_WR)
    assert b"200" in half.recv(4096)
    begun = time.monotonic()
    sagemaker.list_training_jobs()
    assert time.monotonic() - begun < 5
    idle[0].settimeout(20)
    rest = idle[0].recv(4096)  # told to go, or closed, after the head's time-out
    assert rest == b"" or b"408" in rest
    for connection in idle:
        connection.close()


def test_presigned_urls(shared, s3, bucket):
    s3.put_object(Bucket=bucket, Key="signed/a b+c.txt", Body=b"hello")
    connection = http.client.HTTPConnection(*address(shared), timeout=20)

    def fetch(url):
        parts = urllib.parse.urlsplit(url)
        connection.request("GET", parts.path + "?" + parts.query)
        answer = connection.getresponse()
        return answer.status, answer.read()
    for client in (s3, shared.client("s3", signature_version="s3v4")):
        url = client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "signed/a b+c.txt"}, ExpiresIn=60)
        assert fetch(url) == (200, b"hello")
        assert fetch(url.replace("b%2Bc", "x"))[0] == 403
        expired = client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "signed/a b+c.txt"}, ExpiresIn=1)
        time.sleep(2.1)
        status, body = fetch(expired)
        assert status == 403 and b"expired" in body
